"""The broker's side of its cluster: what it asks the controllers for."""
