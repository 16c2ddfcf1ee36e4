"""Train the stages of tests/test_golden_stages.py with an older commit and with this tree, and compare the weights bit for bit: `python tools/same_weights.py COMMIT [RUN ...]`

Weights differ in their last bits from one processor to the next, so both are trained here, now."""
import os, subprocess, sys, tempfile
from pathlib import Path
import torch

root = Path(__file__).resolve().parent.parent
script = root/'tests'/'test_golden_stages.py'

two = '-m torch.distributed.run --standalone --nproc_per_node 2'.split()

def weights(package, out, names):
    "Train the runs `names` with the package in the directory `package`, and one of them in two processes"
    env = os.environ | dict(PYTHONPATH=str(package), OMP_NUM_THREADS='1', FASTFORMERS_PRECISION='fp32', HF_HUB_OFFLINE='1')
    def train(how, names):
        subprocess.run([sys.executable, *how, script, '--weights', out, *names], cwd=package, env=env, check=True)
        return torch.load(out)
    return train([], names) | {'two processes':train(two, ['single'])['single']}

def gap(a, b):
    "Return the largest difference of two weights, infinite where their names or shapes differ"
    if a.keys()!=b.keys() or any(a[k].shape!=b[k].shape for k in a): return float('inf')
    return max((float((a[k].double()-b[k].double()).abs().max()) for k in a if a[k].numel()), default=0.)

if __name__=='__main__':
    commit,*names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(['git','worktree','add','--detach', f'{d}/old', commit], cwd=root, check=True, capture_output=True)
        try: old,new = weights(Path(d)/'old', f'{d}/old.pt', names),weights(root, f'{d}/new.pt', names)
        finally: subprocess.run(['git','worktree','remove','--force', f'{d}/old'], cwd=root, check=True)
    differ = 0
    for k,a in old.items():
        b = new[k]
        same = gap(a['weights'], b['weights'])==0 and a['losses']==b['losses'] and a['metrics']==b['metrics']
        differ += not same
        says = 'equal' if same else f"weights differ by {gap(a['weights'], b['weights']):.2g}, metrics {a['metrics']} and {b['metrics']}"
        print(f'{k}: {says}')
    sys.exit(bool(differ))
