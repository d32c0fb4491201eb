"""How a term is split over machines: what each rank computes, holds and sends follows from how its products are cut."""
