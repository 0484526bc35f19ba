"""One round at an edge: waves of visits, their timing, their replies."""
