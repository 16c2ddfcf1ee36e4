"""The three stages as recipes, and what each stage gained"""
