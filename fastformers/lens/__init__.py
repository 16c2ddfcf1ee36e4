"Measurements of networks for researchers: imported by nothing, each page on what the rooms offer"
