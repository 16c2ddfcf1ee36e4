"""Methods of `papers` that change how a classifier is trained, beside plain fine-tuning on the same rows and seeds

    FASTFORMERS_DATA=... python benchmarks/papers.py run     # about forty minutes on one thread; finished rows are kept
    python benchmarks/papers.py table

`trec` and `clinc150`: 100 questions and 300 utterances, all-MiniLM-L6-v2, Mixout with and without dropout, and UDA on 5,000 unlabelled texts. `wiki`: 300 utterances
from wiki-mini, with EWC, L2-SP and the language model's loss on Wikipedia. `rte`: entailment, alone, after SICK (STILTs) and together with it (MT-DNN).
Development rows score: nothing is chosen by test rows."""
from compare import Table, clinc, draw, held, results
from common import *

def row(right, start, **more):
    return dict(accuracy=round(float(np.mean(right)), 5), hits=np.packbits(right).tobytes().hex(), n_scored=len(right),
                seconds=round(time.time()-start), commit=commit, precision=os.environ.get('FASTFORMERS_PRECISION', 'auto'), processor=processor(), **more)

def plain(df, at, arch='minilm', cols='text', **kw):
    "Train a classifier as typed and score the rows `at`"
    from fastformers.ulmfit.stage import fine_tune_classifier
    both = pd.concat([df.assign(is_valid=False), at.assign(is_valid=True)], ignore_index=True)
    stage = fine_tune_classifier(both, arch, text_col=cols, **kw)
    return stage.learner, stage.score>0

def few(name, args, table):
    "Mixout and UDA with few labels"
    from fastformers.papers.mixout import Mixout
    from fastformers.papers.uda import Consistency
    train,dev = clinc()[:2] if name=='clinc150' else held('trec/train.csv', 'trec/test.csv', 500)[:2]
    dev = dev.sample(min(600, len(dev)), random_state=0)
    for seed in args.seeds:
        df = draw(train, 300 if name=='clinc150' else 100, seed)
        more = train.text.sample(5000 if len(train)>6000 else 4000, random_state=seed).tolist()
        arms = {'plain':{}, 'no dropout':dict(drop_mult=0.), 'Mixout 0.7':dict(drop_mult=0., cbs=lambda: Mixout(.7)),
                'Mixout 0.9':dict(drop_mult=0., cbs=lambda: Mixout(.9)), 'UDA':dict(cbs=lambda: Consistency(more))}
        for arm,kw in arms.items():
            def make():
                start = time.time()
                return row(plain(df, dev, seed=seed, **{k:v() if k=='cbs' else v for k,v in kw.items()})[1], start)
            table.get(make, 'accuracy', set=name, arm=arm, seed=seed)

def wiki(args, table):
    "EWC and L2-SP from wiki-mini: accuracy, and what the language model forgets"
    from fastformers.callback.regularize import L2SP
    from fastformers.data.block import lm_dls
    from fastformers.interpret.forgetting import forgetting
    from fastformers.learner.core import lm_learner
    from fastformers.papers.ewc import EWC, fisher_diagonal
    train,dev,_ = clinc()
    dev = dev.sample(600, random_state=0)
    texts = [o for o in gzip.open(data_files('wiki_en/valid.txt.gz')[0], 'rt', encoding='utf-8').read().splitlines() if len(o)>200][:300]
    fisher = None
    for seed in args.seeds:
        df = draw(train, 300, seed)
        for arm in ('plain','EWC 1e3','EWC 1e5','L2-SP'):
            def make():
                nonlocal fisher
                if fisher is None: fisher = fisher_diagonal(lm_learner(lm_dls(texts[100:], 'wiki-mini', valid_pct=.5, device='cpu'), 'wiki-mini'))
                cbs = {'E':lambda: EWC(fisher, float(arm.split()[1])), 'L':lambda: L2SP(), 'p':lambda: None}[arm[0]]()
                start = time.time()
                learn,right = plain(df, dev, 'wiki-mini', seed=seed, cbs=cbs)
                lm = forgetting(learn, texts[:100], head='wiki-mini')
                return row(right, start, lm_loss=round(float(lm['LM loss'].iloc[-1]), 3), lm_before=round(float(lm['LM loss'].iloc[0]), 3))
            table.get(make, 'accuracy', set='wiki', arm=arm, seed=seed)

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
                return row(plain(df, dev, arch, cols, seed=seed, cbs=cbs)[1], start)
            table.get(make, 'accuracy', set='rte', arm=arm, seed=seed)

def show(rows):
    "Print the mean of each arm, and its difference to plain fine-tuning with a 95 % interval"
    from fastformers.interpret.intervals import paired_bootstrap
    d = pd.DataFrame(rows.all)
    d['right'] = [np.unpackbits(np.frombuffer(bytes.fromhex(h), np.uint8))[:n].astype(float) for h,n in zip(d.hits, d.n_scored)]
    for (name,arm),o in d.groupby(['set','arm'], sort=False):
        base = d[(d.set==name) & (d.arm=='plain') & d.seed.isin(o.seed)]
        gain,low,high = (100*v for v in paired_bootstrap(np.stack(o.right), np.stack(base.right)))
        lm = f'  LM loss {o.lm_loss.mean():.2f}' if 'lm_loss' in o and o.lm_loss.notna().any() else ''
        print(f'{name:9} {arm:12} {100*o.accuracy.mean():5.1f}  {gain:+.1f} ({low:+.1f} to {high:+.1f})  {len(o)} seeds  {o.seconds.mean():.0f} s{lm}')

if __name__=='__main__':
    import gzip, torch
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('part', choices=['run','table'])
    p.add_argument('--sets', default='trec,clinc150,wiki,rte', type=lambda o: o.split(','))
    p.add_argument('--seeds', default='1,2', type=lambda o: [*map(int, o.split(','))])
    args = p.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    quiet()
    table = Table(results/'papers')
    for name in args.sets if args.part=='run' else []: few(name, args, table) if name in ('trec','clinc150') else globals()[name](args, table)
    show(table)
