"""Ask the server itself: start the installed one on the virtual GPU and see what it compiles."""
