"""A csv file ten and a hundred times as long: peak memory and seconds of `fastformers predict --csv`

    python benchmarks/predict_csv.py          # some ten minutes; needs 150 MB for temporary files

A tiny BERT labels short texts. The command runs in a process of its own, whose RssAnon is read twenty times a second.
"""
import argparse, os, subprocess, sys, tempfile, time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
os.environ.update(TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1')
os.environ.setdefault('OMP_NUM_THREADS', '1')
from timing import rss_anon, targets
from common import save

def write_classifier(path):
    "Write an untrained classifier to the directory `path`"
    import transformers
    from fastformers.testing import tiny_arch, tiny_tok
    cfg = tiny_arch('bert', id2label={0:'negative', 1:'neutral', 2:'positive'})
    transformers.BertForSequenceClassification(cfg).save_pretrained(path)
    tiny_tok('bert').save_pretrained(path)

def label(d, n):
    "Label `n` rows: MiB at the peak and at the middle of the second half, seconds by the clock and of the processor"
    with open(d/'in.csv', 'w') as f:
        print('id,text', *(f'{i},"The film number {i} was long, and I liked it"' for i in range(n)), sep='\n', file=f)
    command = f'-m fastformers predict {d}/model --csv {d}/in.csv --out {d}/out.csv --device cpu'.split()
    start,before,mib = time.perf_counter(),getrusage(RUSAGE_CHILDREN),[]
    p = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    while p.poll() is None:
        try: mib.append(rss_anon(p.pid))
        except StopIteration: pass # it has just ended
        time.sleep(.05)
    s,after = time.perf_counter()-start,getrusage(RUSAGE_CHILDREN)
    assert p.returncode==0 and sum(1 for _ in open(d/'out.csv'))==n+1
    cpu = after.ru_utime+after.ru_stime-before.ru_utime-before.ru_stime
    res = dict(rows=n, peak_mib=max(mib), late_mib=mib[len(mib)*3//4], s=s, cpu_s=cpu)
    print({k:round(v, 1) for k,v in res.items()}, flush=True)
    return res

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--rows', type=int, nargs='+', default=[10_000,100_000,1_000_000], help='rows of each file')
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        write_classifier(f'{d}/model')
        runs = [label(Path(d), n) for n in args.rows]
    grown = targets(('peak memory, last / first', runs[-1]['peak_mib']/runs[0]['peak_mib'], '<=', 1.2))
    save('predict_csv', args, vars(args), {'runs':runs, 'targets':grown})
