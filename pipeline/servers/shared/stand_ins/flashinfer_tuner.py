"""FlashInfer's tuner, which logs what it would tune; nothing is timed and nothing is saved.

Kernels take no time on the virtual GPU. A tactic chosen here would be random, and the server would take it from
FlashInfer's cache on the real card.
"""


def install(events):
    """Replace the two methods that profile and save; does nothing when FlashInfer is not installed."""
    try:
        from flashinfer.autotuner import AutoTuner
    except ImportError:
        return
    choose_one = AutoTuner.choose_one

    def log_and_choose_default(self, custom_op, runners, tuning_config, inputs, **more):
        if not self.is_tuning_mode:
            return choose_one(self, custom_op, runners, tuning_config, inputs, **more)
        tuned = self._apply_tuning_overrides(tuning_config) if has_own_buckets(self) else tuning_config
        for profile in self._generate_optimization_profiles(tuned, inputs):
            events("autotune", key=f"{custom_op} {profile.get_opt_shapes()}")
        return runners[0], -1

    AutoTuner.choose_one = log_and_choose_default
    AutoTuner.save_configs = lambda self, path: None


def has_own_buckets(tuner):
    """Whether the caller of `autotune` gave its own buckets."""
    return tuner._override_tuning_buckets is not None or tuner._override_round_up
