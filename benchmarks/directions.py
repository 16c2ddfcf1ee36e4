"""Two directions: classifiers from a forward and a backward language model, and the mean of both (ULMFiT, table 4: IMDb 5.30 and 4.58 % together)

    FASTFORMERS_DATA=... python benchmarks/directions.py --work DIR                 # validation questions, drawn from training questions
    FASTFORMERS_DATA=... python benchmarks/directions.py --work DIR --tokens .02 --seeds 42    # tries the script

Two causal networks of 4 x 256 with the vocabulary of wiki-mini learn `--tokens` million tokens of Wikipedia, one reads backwards. Classifiers of TREC-6 start from each (all training questions but 500), the ensemble is the mean of their probabilities; beside it, the
mean of two forward classifiers, which costs the same. `--work` keeps language models, classifiers and finished rows: the same command goes on after it was stopped.
"""
from classify import Rows, last_only
from common import *
import stage2

def general(work, way, millions):
    "The directory of the language model that reads `way`"
    from fastformers.text.readers import read_texts
    from fastformers.text.encode import HFTokenizer
    from fastformers.ulmfit.stage import pretrain_lm, small_config
    path = work/way
    if not (path/'stage.json').exists():
        texts,tok = read_texts(*data_files('wiki_en/train.txt.gz')).text[:600].tolist(),HFTokenizer('wiki-mini').tok
        share = millions*1e6/sum(map(len, HFTokenizer(tok).encode_batch(texts)))
        pretrain_lm(texts, path, tok, small_config(tok, family='llama', layers=4, width=256), objective='clm', backwards=way=='backwards', precision='fp32',
                    seq_len=128, bs=16, lr=1e-3, valid_pct=.02, epochs=share, resume=work/f'{way}.checkpoints')
    return path

def classify(work, way, df, seed):
    from fastformers.inference.predictor import from_hf
    from fastformers.ulmfit.stage import fine_tune_classifier
    path = work/f'{way}_{seed}'
    fine_tune_classifier(df, work/way, path, valid_col='is_valid', precision='fp32', seed=seed, epochs=4, lr=5e-4, bs=16, max_len=64, cbs=last_only())
    return error([path], df)

def error(paths, df):
    from fastformers.inference.predictor import Ensemble
    held = df[df.is_valid]
    return {'validation':100*float(np.mean([o['label']!=y for o,y in zip(Ensemble(paths)(held.text.tolist()), held.label)]))}

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/directions'), help='directory of networks and finished rows')
    p.add_argument('--tokens', type=float, default=1., help='millions of tokens that each language model reads')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    seeds,rows = [int(o) for o in args.seeds.split(',')],Rows(args.work, millions=args.tokens)
    train,valid,*_ = stage2.trec()
    df = pd.concat([train.assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)
    for way in ('forwards','backwards'): general(args.work, way, args.tokens)
    for seed in seeds:
        for way in ('forwards','backwards'): rows.get(lambda: classify(args.work, way, df, seed), arm=way, seed=seed)
        rows.get(lambda: error([args.work/f'{o}_{seed}' for o in ('forwards','backwards')], df), arm='both directions', seed=seed)
    for a,b in zip(seeds, seeds[1:]+seeds[:1]): rows.get(lambda: error([args.work/f'forwards_{o}' for o in (a,b)], df), arm='two forwards', seed=a)
    got = pd.DataFrame(rows.all)
    save('directions', args, dict(millions=args.tokens, seeds=seeds), {'validation error %':{k:stat(g) for k,g in got[got.seed.isin(seeds)].groupby('arm', sort=False)['validation']}})

if __name__=='__main__': main()
