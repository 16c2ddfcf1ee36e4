"Choose which texts to label next, and tell how good a classifier is and when to stop"
