"""Students: smaller models that are trained towards the outputs of the model that they were made of."""
