"""Methods of `papers` that change how a classifier is trained, beside plain fine-tuning on the same rows and seeds

    FASTFORMERS_DATA=... python benchmarks/papers.py run     # about a quarter of an hour on one thread; finished rows are kept
    python benchmarks/papers.py table

`trec`: 100 questions, all-MiniLM-L6-v2, Mixout with and without dropout. `rte`: entailment with 500 pairs, alone, after SICK (STILTs) and together with it (MT-DNN).
Development rows score; they also decide, in each arm, whether training is kept or the probe."""
from compare import Table, draw, held, results
from common import *

def row(right, start):
    return dict(accuracy=round(float(np.mean(right)), 5), hits=np.packbits(right).tobytes().hex(), n_scored=len(right),
                seconds=round(time.time()-start), commit=commit, precision=os.environ.get('FASTFORMERS_PRECISION', 'auto'), processor=processor())

def plain(df, at, arch='minilm', cols='text', **kw):
    "Train a classifier as typed and score the rows `at`"
    from fastformers.ulmfit.stage import fine_tune_classifier
    both = pd.concat([df.assign(is_valid=False), at.assign(is_valid=True)], ignore_index=True)
    return fine_tune_classifier(both, arch, text_col=cols, **kw).score>0

def trec(args, table):
    "Mixout with 100 questions"
    from fastformers.papers.mixout import Mixout
    train,dev,_ = held('trec/train.csv', 'trec/test.csv', 500)
    arms = {'plain':{}, 'no dropout':dict(drop_mult=0.), 'Mixout 0.7':dict(drop_mult=0., cbs=Mixout(.7)), 'Mixout 0.9':dict(drop_mult=0., cbs=Mixout(.9))}
    for seed in args.seeds:
        df = draw(train, 100, seed)
        for arm,kw in arms.items():
            def make():
                start = time.time()
                return row(plain(df, dev, seed=seed, **kw), start)
            table.get(make, 'accuracy', set='trec', arm=arm, seed=seed)

def rte(args, table):
    "Entailment with SICK before it or beside it"
    import tempfile
    from fastformers.data.block import classifier_dls
    from fastformers.papers.mt_dnn import AuxiliaryTasks
    from fastformers.ulmfit.stage import fine_tune_classifier
    train,sick = (read(o)[['text_a','text_b','label']] for o in data_files('rte/train.csv', 'sick/train.csv'))
    cols = 'text_a','text_b'
    train = train.drop_duplicates('text_a').sample(frac=1, random_state=0)
    train,dev = train[400:],train[:400]
    folder = tempfile.TemporaryDirectory()
    for seed in args.seeds:
        df = train.sample(500, random_state=seed)
        for arm in ('plain','STILTs','MT-DNN'):
            def make():
                start,arch,cbs = time.time(),'minilm',None
                if arm=='STILTs':
                    arch = Path(folder.name)/f'sick{seed}'
                    fine_tune_classifier(sick, 'minilm', arch, text_col=cols, seed=seed, epochs=2.)
                if arm=='MT-DNN': cbs = AuxiliaryTasks({'sick':classifier_dls(sick, 'minilm', cols, bs=16, device='cpu')})
                return row(plain(df, dev, arch, cols, seed=seed, cbs=cbs), start)
            table.get(make, 'accuracy', set='rte', arm=arm, seed=seed)

def show(rows):
    "Print the mean of each arm, and its difference to plain fine-tuning with a 95 % interval"
    from fastformers.interpret.intervals import paired_bootstrap
    d = pd.DataFrame(rows.all)
    d['right'] = [np.unpackbits(np.frombuffer(bytes.fromhex(h), np.uint8))[:n].astype(float) for h,n in zip(d.hits, d.n_scored)]
    for (name,arm),o in d.groupby(['set','arm'], sort=False):
        base = d[(d.set==name) & (d.arm=='plain') & d.seed.isin(o.seed)]
        gain,low,high = (100*v for v in paired_bootstrap(np.stack(o.right), np.stack(base.right)))
        print(f'{name:9} {arm:12} {100*o.accuracy.mean():5.1f}  {gain:+.1f} ({low:+.1f} to {high:+.1f})  {len(o)} seeds  {o.seconds.mean():.0f} s')

if __name__=='__main__':
    import torch
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('part', choices=['run','table'])
    p.add_argument('--sets', default='trec,rte', type=lambda o: o.split(','))
    p.add_argument('--seeds', default='1,2', type=lambda o: [*map(int, o.split(','))])
    args = p.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    quiet()
    table = Table(results/'papers')
    for name in args.sets if args.part=='run' else []: globals()[name](args, table)
    show(table)
