"""Which objective teaches a network most? All of them from random weights on Wikipedia, for equal tokens and for equal time, judged by classifiers

    FASTFORMERS_DATA=... python benchmarks/objectives.py --budget tokens                    # two million tokens each
    FASTFORMERS_DATA=... python benchmarks/objectives.py --budget minutes --only mlm,rtd    # fifteen minutes each; `--size 5`: five
    FASTFORMERS_DATA=... python benchmarks/objectives.py --size .02 --only sop --seeds 42 --sets trec --work DIR    # tries the script

Networks of 4 x 128 with a vocabulary of 4,000 pieces, embeddings that start from counts, batches of 8 x 128 tokens, Adam at 2e-3 with one cycle, one thread, fp32. The family is the one that an objective needs, so `bert` (masked LM in BERT's network; ELECTRA's is the same at
this size) stands beside theirs; `counts` and `random weights` are the start. The judges: classifiers of 1,200 rows (TREC: 2,000) by full fine-tuning, 3 epochs at 1e-3, accuracy (CoLA: Matthews' r) in % on 500 validation rows drawn from training rows, and linear probes
on the best layer, for TREC and SST-2; no test row is read. `--work` keeps finished rows: the same command goes on after it was stopped.
RoBERTa's questions are `static` masks, `docs` and `segment` rows, and batches; ELECTRA's are `rtd` and `rtd15` (detection at hidden tokens only).
`4x256` and `muon` are for equal time: a wider network, and another optimizer.
"""
import tempfile
from functools import cache
from classify import Rows, last_only
from common import *
import glue, stage2

arms = { # objective, its arguments, family, settings of stage 1
    'random weights':('mlm', {}, 'modernbert', dict(epochs=1e-4, minutes=None, embeddings='random')), 'counts':('mlm', {}, 'modernbert', dict(epochs=1e-4, minutes=None)), # one batch
    'mlm':('mlm', {}, 'modernbert', {}), 'p40':('mlm', dict(p=.4), 'modernbert', {}),
    'four passes':('mlm', {}, 'modernbert', dict(passes=4)), 'static':('static_mlm', {}, 'modernbert', dict(passes=4)), # a quarter of the texts, new masks or the same in each pass
    'words':('whole_word_mlm', {}, 'modernbert', {}), 'spans':('span_mlm', {}, 'modernbert', {}),
    'clm':('clm', {}, 'llama', {}), 'hybrid':('hybrid', {}, 'llama', {}), 'plm':('plm', {}, 'xlnet', {}),
    'bert':('mlm', {}, 'bert', {}), 'docs':('mlm', {}, 'bert', dict(packing='doc-sentences')), 'segment':('mlm', {}, 'bert', dict(packing='segment-pair')),
    'nsp':('joint', {}, 'bert', dict(packing='segment-pair')), 'sop':('mlm_sop', {}, 'bert', dict(packing='segment-pair')),
    'rtd':('rtd', {}, 'electra', dict(lr=5e-4)), 'rtd15':('rtd', dict(detect='hidden'), 'electra', dict(lr=5e-4)), 'rtd2e-3':('rtd', {}, 'electra', {}), # ELECTRA-Small's rate, and the others'
    'bs2':('mlm', {}, 'modernbert', dict(bs=2)), 'bs32':('mlm', {}, 'modernbert', dict(bs=32)), 'lr1e-3':('mlm', {}, 'modernbert', dict(lr=1e-3)), 'lr4e-3':('mlm', {}, 'modernbert', dict(lr=4e-3)),
    'muon':('mlm', {}, 'modernbert', dict(opt='muon')), '4x256':('mlm', {}, 'modernbert', dict(width=256))} # for equal time
network = dict(layers=4, width=128)
settings = dict(seq_len=128, bs=8, lr=2e-3, packing='full-sentences', valid_pct=.02, embeddings='counts')
judges = dict(epochs=3, lr=1e-3, bs=16, max_len=128)
sizes = {'tokens':2.,'minutes':15.}

def objective(name, tok, seed, **kwargs):
    from fastformers.objectives.core import objectives
    known = objectives.load()
    def made(name, **kwargs): return known[name](tok, seed=seed, **kwargs)
    return known['joint']([made('mlm'), made('sop')]) if name=='mlm_sop' else made(name, **kwargs)

def muon_optimizer():
    "A callback that gives a learner the optimizer Muon"
    import torch
    from fastai.callback.core import Callback
    from torch.optim._muon import muon
    from fastformers.learner.optimizer import FusedAdam
    class Muon(FusedAdam):
        "Orthogonalised momentum for the matrices of the blocks (Jordan et al. 2024), scaled to Adam's step; Adam for the rest"
        def _update(self, ps, hyper, wd):
            inner = {id(p) for group in self.param_lists[1:-1] for p in group if p.ndim==2}
            mats = [p for p in ps if id(p) in inner]
            if len(mats)<len(ps): super()._update([p for p in ps if id(p) not in inner], hyper, wd)
            for p in mats:
                if 'grad_avg' not in self.state[p]: self.state[p]['grad_avg'] = torch.zeros_like(p)
            if mats: self._orthogonal(mats, hyper, wd)
        @torch.no_grad()
        def _orthogonal(self, ps, hyper, wd):
            muon(ps, [p.grad for p in ps], [self.state[p]['grad_avg'] for p in ps], lr=hyper['lr'], weight_decay=wd, momentum=.95, nesterov=True,
                 ns_coefficients=(3.4445,-4.775,2.0315), eps=1e-7, ns_steps=5, adjust_lr_fn='match_rms_adamw', has_complex=False)
    class UseMuon(Callback):
        def after_create(self): self.learn.opt_func = Muon
    return UseMuon()

@cache
def corpus(n):
    "(a tokenizer, articles, the sum of their tokens up to each): about `n` tokens in an order drawn once"
    from fastformers.text.readers import read_texts
    from fastformers.text.encode import HFTokenizer
    from fastformers.text.train_tokenizer import train_tokenizer
    texts = read_texts(*data_files('wiki_en/train.txt.gz')).text.sample(frac=1, random_state=0).tolist()
    tok = train_tokenizer(texts[:4000], 'wordpiece', 4000)
    texts = texts[:int(n/3000)+10] # an article has about 5,000 tokens
    return tok,texts,np.cumsum([len(o) for o in HFTokenizer(tok).encode_batch(texts)])

def pretrain(arm, budget, size, seed, path):
    "Stage 1 of an arm, written to `path`"
    from fastformers.ulmfit.read_lm import small_config
    from fastformers.ulmfit.stage import pretrain_lm
    name,kwargs,family,own = arms[arm]
    own = dict(own)
    passes,opt,width = own.pop('passes', 1),own.pop('opt', None),own.pop('width', network['width'])
    tok,texts,read = corpus(n := size*(1e6 if budget=='tokens' else 5e5)) # nothing here reads half a million tokens in a minute
    k = int(np.searchsorted(read, n/passes))+1
    length = dict(epochs=n/read[k-1]) if budget=='tokens' else dict(minutes=size)
    return pretrain_lm(texts[:k], path, tok, small_config(tok, family=family, size=network['layers'], width=width), objective=objective(name, tok, seed, **kwargs),
                       precision='fp32', seed=seed, cbs=muon_optimizer() if opt=='muon' else None, **length | settings | own)

def sets(names):
    "Name -> labelled rows with `is_valid`, drawn from training rows"
    res = {o:glue.load(o, False)[0] for o in names if o!='trec'}
    if 'trec' in names:
        train,valid,*_ = stage2.trec()
        res['trec'] = pd.concat([train[:2000].assign(is_valid=False), valid.assign(is_valid=True)], ignore_index=True)
    return res

def judge(path, name, df, seed):
    "The score of a classifier that begins from the body in `path`"
    import torch
    from sklearn.metrics import matthews_corrcoef
    from fastformers.ulmfit.stage import fine_tune_classifier
    learn = fine_tune_classifier(df, path, text_col=glue.columns(df), label_col='label', valid_col='is_valid', precision='fp32', seed=seed, cbs=last_only(), **judges).learner
    with learn.no_bar(): p,y = learn.get_preds()
    return 100*(matthews_corrcoef(y, p.argmax(1)) if name=='cola' else float((p.argmax(1)==y).float().mean()))

def probe(path, df):
    "The accuracy in % of a linear probe on the best layer of the body in `path`"
    from fastformers.interpret.probes import layer_probes
    return 100*float(layer_probes(path, df, valid_col='is_valid').accuracy.max())

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--budget', choices=sizes, default='tokens')
    p.add_argument('--size', type=float, help='million tokens, or minutes')
    p.add_argument('--only', default=','.join(arms))
    p.add_argument('--sets', default='trec,cola,sst2,mrpc')
    p.add_argument('--work', type=Path, default=results/'objectives', help='directory of finished rows')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    size = args.size or sizes[args.budget]
    rows,data,seeds = Rows(args.work, settings=settings, judges=judges),sets(args.sets.split(',')),[int(o) for o in args.seeds.split(',')]
    def row(arm, seed):
        with tempfile.TemporaryDirectory() as tmp:
            lm = pretrain(arm, args.budget, size, seed, Path(tmp)/'lm')
            read = lm.data['training tokens']*lm.schedule.total/1e6
            return {'validation':{k:judge(lm.path, k, df, seed) for k,df in data.items()} | {f'{k}, probe':probe(lm.path, df) for k,df in data.items() if k in ('trec','sst2')}, 'million tokens':round(read, 2), 'loss':lm.metrics['loss'], 'LM minutes':round(lm.seconds/60, 1)}
    for seed in seeds:
        for arm in args.only.split(','): rows.get(lambda: row(arm, seed), budget=args.budget, size=size, arm=arm, seed=seed)
    table = pd.DataFrame([dict(arm=o['arm'], **o['validation'], mean=np.mean([*o['validation'].values()]), tokens=o['million tokens'], minutes=o['LM minutes']) for o in rows.all if o['budget']==args.budget and o['size']==size])
    table = table.groupby('arm', sort=False).agg(['mean','std']).round(2)
    print(table.sort_values(('mean','mean'), ascending=False).to_string())
    names = [*rows.all[-1]['validation']]
    save(f'objectives_{args.budget}', args, dict(settings=settings, judges=judges, size=size), {'validation %':{arm:{k:stat([o['validation'][k] for o in rows.all if o['arm']==arm and o['budget']==args.budget and o['size']==size]) for k in names} for arm in table.index}})

if __name__=='__main__': main()
