"""CuTe-DSL kernels are compiled by the real compiler and not launched.

Their runtime is linked statically and loads on NVIDIA's own driver only. CuTe-DSL keeps the result of `cute.compile` in
memory only (base_dsl/compiler.py sets no_cache), so there is nothing to bake: every start compiles these again.
"""


def install(events):
    """Log every compiled kernel and skip its launches; does nothing when CuTe-DSL is not installed."""
    try:
        from cutlass.base_dsl.compiler import CompileCallable
    except ImportError:
        return
    compile_kernel = CompileCallable._compile

    def compile_and_note(self, func, *args, **kwargs):
        compiled = compile_kernel(self, func, *args, **kwargs)
        events("cute_dsl", kernel=name_of(func))
        return Unlaunched(compiled)

    CompileCallable._compile = compile_and_note


def name_of(func):
    """Module and name of a function, or module and class of a callable object."""
    named = func if hasattr(func, "__qualname__") else type(func)
    return f"{named.__module__}.{named.__qualname__}"


class Unlaunched:
    """A compiled kernel that is never launched: its outputs keep the contents they had."""

    def __init__(self, compiled):
        self._compiled = compiled

    def __call__(self, *args, **kwargs):
        return None

    def __getattr__(self, name):
        return getattr(self._compiled, name)
