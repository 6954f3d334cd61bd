"""FlashInfer's tuner on a GPU where every kernel takes no time: what it would tune is noted, nothing is timed or saved.

A tactic chosen here would be chosen at random, and SGLang would read it back from its cache on the card.
"""


def install(events):
    """Replace the two methods that profile and save; nothing when FlashInfer is not installed."""
    try:
        from flashinfer.autotuner import AutoTuner
    except ImportError:
        return
    choose_one = AutoTuner.choose_one

    def note_and_take_the_default(self, custom_op, runners, tuning_config, inputs, **more):
        if not self.is_tuning_mode:
            return choose_one(self, custom_op, runners, tuning_config, inputs, **more)
        tuned = self._apply_tuning_overrides(tuning_config) if overridden(self) else tuning_config
        for profile in self._generate_optimization_profiles(tuned, inputs):
            events("autotune", key=f"{custom_op} {profile.get_opt_shapes()}")
        return runners[0], -1

    AutoTuner.choose_one = note_and_take_the_default
    AutoTuner.save_configs = lambda self, path: None


def overridden(tuner):
    """Whether the caller of `autotune` brought buckets of its own."""
    return tuner._override_tuning_buckets is not None or tuner._override_round_up
