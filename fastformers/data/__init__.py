"""Token ids and labels to DataLoaders"""
