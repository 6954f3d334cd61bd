"""CuTe-DSL kernels are compiled as ever and not launched.

Their runtime is linked statically and loads on NVIDIA's own driver only. CuTe-DSL keeps what `cute.compile` made in
memory alone (base_dsl/compiler.py sets no_cache), so there is nothing to bake: every start compiles these again.
"""


def install(events):
    """Note every kernel and leave its launch out; nothing when CuTe-DSL is not installed."""
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
    """Function and module, or class and module of an object that is called."""
    named = func if hasattr(func, "__qualname__") else type(func)
    return f"{named.__module__}.{named.__qualname__}"


class Unlaunched:
    """A compiled kernel whose outputs, like those of every kernel here, are whatever they were."""

    def __init__(self, compiled):
        self._compiled = compiled

    def __call__(self, *args, **kwargs):
        return None

    def __getattr__(self, name):
        return getattr(self._compiled, name)
