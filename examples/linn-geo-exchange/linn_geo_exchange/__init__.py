"""linn-geo-exchange: messages go to the regions that they are in."""
