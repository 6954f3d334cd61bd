"""How DeepGEMM's cubins are made: discovered on the virtual GPU, compiled by the farm, kept in the store."""
