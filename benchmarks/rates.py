"""Which encoder, which learning rate and which pooling: `fine_tune_classifier` with each rate of a grid, beside the frozen probe

    FASTFORMERS_DATA=... python benchmarks/rates.py run --archs minilm,PATH/all-mpnet-base-v2 --draws 1   # development rows
    FASTFORMERS_DATA=... python benchmarks/rates.py choose --archs minilm,PATH/all-mpnet-base-v2          # `leaderboard(archs=[...])`
    python benchmarks/rates.py table                                                                      # what the rows say

All rates see the same rows and the same number of steps. Finished rows are in results/rates/rows.jsonl, and a second call goes on."""
import tempfile
from classify import Rows as Table
from common import *
from compare import draw, entries, sets

def spanish():
    "Topics of Spanish news, of each article the first 60 words"
    rows = [o.assign(text=o.text.str.split().str[:60].str.join(' '), label=o.topic) for o in map(read, data_files('fakenews_es/train.csv.gz', 'fakenews_es/dev.csv.gz'))]
    return [o.drop_duplicates('text').reset_index(drop=True) for o in rows]+[None]

sets = sets | dict(fakenews_es=((300,), spanish))

def store(args):
    quiet()
    logging.disable(logging.INFO)
    return Table(results/'rates', part='development', precision=precision(), **circumstances(args)['versions'])

def drawn(args, seed):
    "Key, labelled rows and 500 development rows of each set"
    for name in args.sets.split(','):
        key,_,n = name.partition(':')
        train,dev,_ = sets[key][1]()
        yield key,draw(train, int(n or sets[key][0][0]), seed)[['text','label']],dev.sample(min(len(dev), 500), random_state=0)

def run(args):
    from fastformers.learner.save import as_predictor
    from fastformers.ulmfit.stage import fine_tune_classifier
    table = store(args)
    for seed in map(int, args.draws.split(',')):
        for arch in args.archs.split(','):
            for key,rows,dev in drawn(args, seed):
                for lr,pool in ((lr, pool) for lr in (None, *map(float, filter(None, args.rates.split(',')))) for pool in args.pools.split(',')):
                    def make():
                        start = time.process_time()
                        learn = fine_tune_classifier(rows, arch, lr=lr, pool=pool, epochs=None if lr else 0).learner # 0: the probe
                        spent = time.process_time()-start
                        found = [o['label'] for o in as_predictor(learn)(dev.text.tolist())]
                        return dict(accuracy=round(float(np.mean(np.array(found)==dev.label.to_numpy())), 4), cpu_seconds=round(spent), rows=len(dev), commit=commit, processor=processor())
                    table.get(make, 'accuracy', encoder=Path(arch).name, set=key, labels=len(rows), lr=lr or 'frozen probe', pool=pool, draw=seed)

def choose(args):
    "Which of the encoders does `leaderboard` choose, and how good is what it hands out?"
    from fastformers.compare.leaderboard import leaderboard
    from fastformers.inference.predictor import from_hf
    table,archs = store(args),args.archs.split(',')
    ours = [k for k,o in entries.items() if o.fit is None or o.fit.__module__.startswith('fastformers')] # `compare` registers arms of its own
    for seed in map(int, args.draws.split(',')):
        for key,rows,dev in drawn(args, seed):
            def make():
                start,cpu = time.perf_counter(),time.process_time()
                with tempfile.TemporaryDirectory() as tmp:
                    board = leaderboard(rows, archs=archs, minutes=args.minutes, path=tmp, entries=ours, log=lambda o: None)
                    took,spent = time.perf_counter()-start,time.process_time()-cpu
                    found = [o['label'] for o in from_hf(f'{tmp}/best')(dev.text.tolist())]
                return dict(choice=board.winner, entries=[*board.scored], accuracy=round(float(np.mean(np.array(found)==dev.label.to_numpy())), 4),
                            took=round(took/60, 1), cpu_seconds=round(spent), rows=len(dev), commit=commit, processor=processor())
            table.get(make, 'accuracy', what='leaderboard', encoder=' '.join(Path(o).name for o in archs), set=key, labels=len(rows), asked=args.minutes, draw=seed)

def table(args):
    rows = pd.DataFrame(json.loads(l) for l in (results/'rates'/'rows.jsonl').read_text().splitlines())
    chosen = rows[rows.what=='leaderboard']
    print(chosen[['precision','set','labels','draw','encoder','choice','accuracy','took']].to_string(index=False), end='\n\n')
    rows = rows[rows.what.isna()].fillna({'precision':'fp32'}) # older rows do not say
    by = ['encoder','precision','pool','set','labels']
    p = rows.pivot_table(index=by, columns='lr', values='accuracy', aggfunc='mean', sort=False)
    p = p[sorted(p, key=lambda o: -1 if isinstance(o, str) else o)]
    p['draws'] = rows.groupby(by, sort=False).draw.nunique()
    print(p.reset_index().to_string(index=False, float_format='{:.3f}'.format, na_rep=''))

if __name__=='__main__':
    p = parser(__doc__)
    p.add_argument('do', choices=('run','choose','table'))
    p.add_argument('--draws', default='1')
    p.add_argument('--archs', default='minilm')
    p.add_argument('--sets', default='trec:100,clinc150,sst2', help='each with the number of labels after a colon')
    p.add_argument('--rates', default='2e-5,6e-5,1e-4,2e-4')
    p.add_argument('--pools', default='concat', help='of the head: concat, mean, cls')
    p.add_argument('--minutes', type=float, default=10, help='of `choose`')
    args = p.parse_args()
    dict(run=run, choose=choose, table=table)[args.do](args)
