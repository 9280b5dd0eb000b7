model = base * 2
print('trained')
__import__('jupyter_elastic.shell', fromlist=['_']).system('echo {model}')
model
