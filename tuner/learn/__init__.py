"""From recorded times to a selector: data set, portfolio, forest, guards, nested validation."""
