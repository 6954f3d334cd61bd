"""Modules that run inside SGLang's own Python; of this project they import only the shared stand-ins."""
