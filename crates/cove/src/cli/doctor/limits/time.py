# Never ends by itself.
while True:
    pass
