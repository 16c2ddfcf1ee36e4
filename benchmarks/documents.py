"""What does reading the whole text buy? IMDb reviews cut at 128, 256 and 512 tokens, and read whole in windows

    FASTFORMERS_DATA=... python benchmarks/documents.py # validation reviews of other films
    FASTFORMERS_DATA=... python benchmarks/documents.py --sizes 500 --arms 256,8x256
    FASTFORMERS_DATA=... python benchmarks/documents.py --data spanish --arch LM --sizes 600       # articles of Spanish news, by a language model in the directory LM
    FASTFORMERS_DATA=... python benchmarks/documents.py --memory                       # peak memory of training with 2 to 16 windows

An arm is a number of tokens, `8x256` for up to 8 windows of 256, or `trainer512` for Hugging Face's `Trainer` with MiniLM. The body is MiniLM unless `--arch` names another, beside TF-IDF + logistic regression on whole texts. `--work` keeps finished rows: the same command
goes on after it was stopped. The split is that of stage2.py.
"""
from classify import Rows, last_only
from common import *
import glue, stage2

arms,epochs,lr = '128,256,512,8x256,16x128',{500:4, 600:6, 2000:3},2e-4

def reads(arm):
    "The arguments of `classifier_dls` that `arm` names"
    windows,_,n = arm.rpartition('x')
    return dict(max_len=int(n), windows=int(windows or 1))

def learner(df, arm, seed, arch, bs=16):
    from fastai.torch_core import set_seed
    from fastformers.data.block import classifier_dls
    from fastformers.learner.core import classifier_learner
    set_seed(seed)
    return classifier_learner(classifier_dls(df, arch, bs=bs, seed=seed, device='cpu', **reads(arm)), arch, head_init='random', cbs=last_only())

def classify(df, arm, seed, n, arch):
    if arm.startswith('trainer'): return {'validation':100-glue.trainer('accuracy', df, None, seed, lr, epochs[n], int(arm.removeprefix('trainer')))['validation']}
    learn = learner(df, arm, seed, arch)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs[n], lr)
    return {'validation':100*(1-float(learn.recorder.values[-1][2]))}

def memory(n):
    "Print the peak resident memory in MB of a few training steps on texts of `n` windows"
    import resource
    df = pd.DataFrame([dict(text='a fine film and a good one '*(37*n), label=i%2, is_valid=i>7) for i in range(12)])
    learn = learner(df, f'{n}x256', 42, 'minilm', bs=4)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-5)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024)

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=results/'documents', help='directory of finished rows')
    p.add_argument('--arms', default=arms)
    p.add_argument('--sizes', default='500,2000', help='numbers of labels')
    p.add_argument('--data', choices=('imdb','spanish'), default='imdb')
    p.add_argument('--arch', default='minilm')
    p.add_argument('--memory', action='store_true')
    p.add_argument('--one', type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    if args.one: return memory(args.one)
    if args.memory:
        def peak(n): return int(subprocess.run([sys.executable, __file__, f'--one={n}'], capture_output=True, text=True).stdout.split()[-1])
        return save('documents_memory', args, {}, {'peak MB':{f'{n} windows':peak(n) for n in (2,4,8,16)}})
    key = dict(data=args.data, arch=Path(args.arch).name)
    rows,seeds,sizes = Rows(args.work, **key),[int(o) for o in args.seeds.split(',')],[int(o) for o in args.sizes.split(',')]
    train,valid,*_ = getattr(stage2, args.data)()
    for n in sizes:
        for seed in seeds:
            df = pd.concat([stage2.sample(train, n, seed).assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)[['text','label','is_valid']]
            rows.get(lambda: {'validation':tfidf_error(df[~df.is_valid], valid)}, n=n, epochs=0, arm='TF-IDF', seed=seed)
            for arm in args.arms.split(','): rows.get(lambda: classify(df, arm, seed, n, args.arch), n=n, epochs=epochs[n], arm=arm, seed=seed)
    o = pd.DataFrame(rows.all)
    figures = {f'{n} labels, {a}':stat(g.validation)|{'minutes':round(g.minutes.mean(), 1)} for (n,a),g in o.groupby(['n','arm'], sort=False)}
    save('documents' if args.data=='imdb' else f'documents_{args.data}', args, dict(key, epochs=epochs, lr=lr, seeds=seeds), {'validation error %':figures})

if __name__=='__main__': main()
