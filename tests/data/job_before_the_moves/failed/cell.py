print('before')
raise ValueError('an old failure')