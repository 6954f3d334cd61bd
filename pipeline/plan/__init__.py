"""The plan of a recipe: how it is made, printed and explained."""
