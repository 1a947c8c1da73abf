"""Learning to see from public or random images, without labels and before any private image is touched.

losses.py      what a pair of views of one image should satisfy
encoder.py     a network's trunk under a projection, which is thrown away afterwards
images.py      where images come from: a random process, as a stream
run.py         the training, which can be stopped and resumed
check.py       whether it learned anything, told by random images alone
"""
