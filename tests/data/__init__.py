"""Tests of labelsieve/data: reading labelled data from files and folders."""
