"The command `fastformers`, as `python -m fastformers` and for `torchrun -m fastformers`"
import sys
from fastformers.cli import main

if __name__=="__main__": sys.exit(main())
