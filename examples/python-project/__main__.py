from inventory.stock import Stock

stock = Stock()
stock.add("naïve café chairs", 4)
stock.add("desks", 2)
stock.add("desks", 3)
print(stock)
