#!/usr/bin/env python3
"""A browser without a window: fetches its address and follows every redirect, as a person who agrees at once."""

import sys
import urllib.request

urllib.request.urlopen(sys.argv[1], timeout=60).read()
