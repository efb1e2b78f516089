"""python -m labelsieve"""

from labelsieve.cli import main

main()
