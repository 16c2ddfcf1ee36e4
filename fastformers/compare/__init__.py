"Compare ways to make a classifier on the same rows, in the minutes there are"
