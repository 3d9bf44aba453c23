"""Pictures and the page of `report`."""
