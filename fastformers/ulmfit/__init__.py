"""The three stages as recipes, and what each one bought"""
