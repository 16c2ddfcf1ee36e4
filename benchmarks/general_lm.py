"""Which recipe for a small general language model? Short runs on Wikipedia at equal CPU time, judged by what their bodies are worth to a classifier

    FASTFORMERS_DATA=... python benchmarks/general_lm.py --work DIR                      # every trial: about half an hour each on one core
    FASTFORMERS_DATA=... python benchmarks/general_lm.py --work DIR --only base,p15      # some of them
    FASTFORMERS_DATA=... python benchmarks/general_lm.py --work DIR --minutes .2 --megabytes 1 --only base --few 60   # tries the script, writes no result

Articles of the English Wikipedia in random order, a WordPiece tokenizer of 16,000, one thread, bfloat16 where the processor has it. A trial changes one thing of the trial `base`: 30 % of the tokens masked, ModernBERT of 4 x 256 with
feed-forward layers of 512, embeddings that start from counts, batches of 8 x 256 tokens, Adam at 2e-3 with one cycle over the budget. The judges are validation rows drawn from training rows (no test row is read): TREC, all other rows to train; IMDb, 500 balanced reviews, at 256 tokens.
Each is judged twice: logistic regression on the mean of the frozen states, and fine-tuning of the whole, two seeds.
"""
from classify import Rows
from common import *
from rtd import budget, corpus, fine_tune, probe, questions

base = dict(objective='mlm', mask_rate=.3, family='modernbert', layers=4, width=256, inner=512, embeddings='counts', seq_len=256, bs=8, lr=2e-3, opt='Adam')
trials = {'base':{}, 'no counts':dict(embeddings='random'), 'p15':dict(mask_rate=.15), 'p40':dict(mask_rate=.4), 'words':dict(objective='whole_word_mlm'), 'bert':dict(family='bert', inner=1024),
          'electra':dict(family='electra', inner=1024), 'rtd':dict(objective='rtd', family='electra', inner=1024), '2x256':dict(layers=2), '6x256':dict(layers=6), '6x384':dict(layers=6, width=384, inner=768),
          'lr1e-3':dict(lr=1e-3), 'lr4e-3':dict(lr=4e-3), 'bs4':dict(bs=4), 'bs16':dict(bs=16), 'seq128':dict(seq_len=128, bs=16), 'lamb':dict(opt='Lamb', lr=8e-3), 'muon':dict(opt='Muon')}

def optimizer(name):
    "A fastai optimizer function"
    import torch
    from fastai.optimizer import Lamb
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
    return dict(Adam=FusedAdam, Lamb=Lamb, Muon=Muon)[name]

def network(t, tok):
    from fastformers.ulmfit.stage import small_config
    return small_config(tok, **{k:t[k] for k in ('family','layers','width','inner')})

def reviews(path, n_train=500, n_valid=2000, seed=0):
    "Balanced training reviews, and validation reviews of other films"
    df = read(path).sample(frac=1, random_state=seed, ignore_index=True)
    films = set(df.movie.drop_duplicates().sample(frac=.3, random_state=seed))
    valid,train = df[df.movie.isin(films)],df[~df.movie.isin(films)]
    def balanced(o, n): return o.groupby('label').head(n//2)
    return pd.concat([balanced(train, n_train).assign(is_valid=False), balanced(valid, n_valid).assign(is_valid=True)], ignore_index=True)[['text','label','is_valid']]

def pretrain(t, texts, tok, path, minutes):
    "Train the language model of the trial `t` for so many CPU minutes, write it to `path`"
    from fastai.torch_core import set_seed
    from fastformers.data.block import lm_dls
    from fastformers.learner import counts # `start_from_counts`
    from fastformers.learner.core import lm_learner
    from fastformers.objectives.core import all_objectives
    set_seed(42)
    rate = dict(p=t['mask_rate']) if 'mlm' in t['objective'] else {}
    dls = lm_dls(texts, tok, all_objectives()[t['objective']](tok, **rate), valid_pct=.02, seq_len=t['seq_len'], bs=t['bs'], packing='full-sentences', device='cpu')
    learn = lm_learner(dls, network(t, tok), drop_mult=0., opt_func=optimizer(t['opt']))
    if t['embeddings']=='counts': learn.start_from_counts()
    clock = budget(60*minutes, t['lr'])
    with learn.no_bar(), learn.no_logging():
        learn.fit(1000, t['lr'], cbs=clock)
        figures = dict(zip(['loss', *(m.name for m in learn.metrics)], map(float, learn.validate())))
    learn.save_encoder(path)
    return dict(validation=figures, steps=clock.steps, tokens=clock.tokens, passes=clock.steps/len(dls.train), weights=sum(p.numel() for p in learn.model.parameters()))

def judged(arch, tok, sets, seeds, few):
    "Accuracy in % of a probe and of fine-tuned networks on each data set"
    import torch
    from fastformers.models.load import load_body
    torch.manual_seed(0)
    res = {}
    for name,(df,max_len,epochs,lr) in sets.items():
        if few: df = pd.concat([df[~df.is_valid][:few], df[df.is_valid][:few]])
        res[f'{name} probe'] = probe(load_body(arch), tok, df, max_len)['validation']
        res[f'{name} fine-tuned'] = stat([fine_tune(arch, tok, df, s, max_len, epochs, lr, 'auto')['validation'] for s in seeds])
    return dict(validation=res)

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--work', type=Path, default=Path('runs/general_lm'), help='directory of what is under way')
    p.add_argument('--only', default=','.join(trials), help='names of trials, separated by commas')
    p.add_argument('--minutes', type=float, default=15, help='CPU minutes a language model')
    p.add_argument('--megabytes', type=float, default=90, help='of Wikipedia')
    p.add_argument('--few', type=int, default=0, help='only so many rows of each set, to try the script')
    p.set_defaults(seeds='42,43')
    args = p.parse_args()
    import torch
    from fastformers.text.tokenizer import load_tokenizer
    from fastformers.text.train_tokenizer import train_tokenizer
    torch.set_num_threads(1)
    quiet()
    wiki,trec,imdb = data_files('wiki_en/train.txt.gz','trec/train.csv','imdb/train.csv.gz')
    sets = {'TREC':(questions(trec), 64, 6, 3e-4), 'IMDb 500':(reviews(imdb), 256, 10, 3e-4)}
    rows = Rows(args.work, minutes_each=args.minutes, megabytes=args.megabytes, few=args.few)
    where,texts,seeds = args.work/f'{args.minutes}_{args.megabytes}',[],[int(o) for o in args.seeds.split(',')]
    def wikipedia():
        if not texts: texts.extend(corpus(wiki, args.megabytes))
        return texts
    if not (where/'tok').is_dir(): train_tokenizer(wikipedia(), 'wordpiece', 16000, where/'tok')
    tok,figures = load_tokenizer(where/'tok'),{}
    for name in ['random', *args.only.split(',')]:
        t = base | trials.get(name, {})
        lm = {} if name=='random' else rows.get(lambda: pretrain(t, wikipedia(), tok, where/name, args.minutes), trial=name, what='language model', **t)
        arch = network(t, tok) if name=='random' else where/name
        worth = rows.get(lambda: judged(arch, tok, sets, seeds, args.few), trial=name, what='judged', seeds=seeds, **t)
        figures[name] = {**trials.get(name, {}), **{k:lm[k] for k in lm if k in ('steps','tokens','passes','weights')}, 'language model':lm.get('validation'), **worth['validation']}
    print(json.dumps(figures, indent=1), flush=True)
    if not args.few: save('general_lm', args, dict(base=base, minutes=args.minutes, megabytes=args.megabytes, seeds=seeds), figures)

if __name__=='__main__': main()
