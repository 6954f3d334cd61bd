"""From a recipe to the problems that a server will launch; pure Python."""
