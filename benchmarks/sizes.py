"""How much text, and which size? Stage 1 from random weights by `size=` and tokens of Wikipedia, judged by held-out text and by a classifier

    FASTFORMERS_DATA=... python benchmarks/sizes.py                                          # cells that are not there yet, each of at most five minutes of a core
    FASTFORMERS_DATA=... python benchmarks/sizes.py --tokens .1 --sizes 1 --work DIR         # tries the script

A cell is a network of `size=` and one pass over so many tokens: masked LM, ModernBERT, a vocabulary of 4,000 pieces, rows of 128 tokens, all else by default, one thread. Bits per byte are those of the masked tokens of six validation articles. The classifier is `fine_tune_classifier` as typed, on 300 utterances of CLINC150
drawn as they come; accuracy in % on its 3,000 validation rows. A size is not tried with more tokens once twice the minutes of its last cell are more than `--most`. `--table` makes table and picture, nbs/images/sizes.png, of the cells that are there.
"""
import tempfile
from classify import Rows
from common import *
from objectives import corpus

settings = dict(seq_len=128)
held_out,labels,draw = 6,300,1

def labelled():
    "Utterances to train on, drawn as they come, and those that judge"
    from fastformers.text.corpora import intents
    return pd.concat([intents(labels, seed=draw).assign(is_valid=False), intents().query("split=='valid'").assign(is_valid=True)], ignore_index=True)

def cell(size, tokens, seed, precision, most):
    "Figures of a network of `size` after so many million `tokens`, the first of `most` million"
    from fastformers.text.readers import read_texts
    from fastformers.ulmfit.stage import fine_tune_classifier, pretrain_lm
    tok,texts,read = corpus(most*1e6)
    start = time.process_time()
    k = int(np.searchsorted(read, tokens*1e6))+1
    held = read_texts(*data_files('wiki_en/valid.txt.gz')).head(held_out)
    df = pd.concat([pd.DataFrame({'text':texts[:k]}).assign(is_valid=False), held.assign(is_valid=True)], ignore_index=True)
    with tempfile.TemporaryDirectory() as tmp:
        lm = pretrain_lm(df, Path(tmp)/'lm', tok, size=size, epochs=tokens*1e6/read[k-1], seed=seed, precision=precision, **settings)
        clf = fine_tune_classifier(labelled(), lm.path, seed=seed, precision=precision)
    bits = lm.metrics['nll_per_byte']/np.log(2)
    return {'validation':{'bits per byte':float(bits), 'accuracy':100*clf.metrics['accuracy']}, 'probe':100*clf.before['accuracy'], 'loss':lm.metrics['loss'], 'weights':sum(p.numel() for p in lm.learner.model.parameters()),
            'bs':lm.learner.dls.bs, 'lr':lm.lr, 'core minutes':(time.process_time()-start)/60, 'commit':commit, 'processor':processor()}

def fitted(o):
    "Slope and level of a line through the logarithms of tokens and bits"
    return np.polyfit(np.log(o.tokens), np.log(o['bits per byte']), 1)

def plot(table, ticks, tfidf):
    "Bits per byte and accuracy by tokens, a line for each size; dashed: what the fitted line says beyond the cells"
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator, StrMethodFormatter
    fig = Figure(figsize=(10,4), layout='constrained')
    a,b = fig.subplots(1, 2)
    for i,(size,o) in enumerate(table.groupby('size')):
        name,color = f'size={size}: {size} x {64*size}',f'C{i}'
        a.plot(o.tokens, o['bits per byte'], 'o', color=color, label=name)
        if len(o)>2:
            line = np.poly1d(fitted(o))
            for x,style in ((o.tokens.agg(['min','max']), '-'), (np.array([o.tokens.max(), ticks[-1]]), '--')): a.plot(x, np.exp(line(np.log(x))), style, color=color, lw=1)
        b.plot(o.tokens, o.accuracy, 'o-', color=color, label=name)
    a.plot([], [], 'k--', lw=1, label='extrapolated')
    b.axhline(tfidf, color='grey', ls=':', label='TF-IDF')
    b.legend(fontsize=8)
    a.set(yscale='log', ylabel='bits per byte of masked tokens', title='More text predicts articles better ...', yticks=np.arange(1.6, 3.3, .2))
    b.set(ylabel='% right', title=f'... and ten domains of utterances worse ({labels} labels)')
    for ax in (a,b):
        ax.set(xscale='log', xlabel='million tokens of Wikipedia, one pass', xticks=ticks)
        ax.xaxis.set_major_formatter(StrMethodFormatter('{x:g}'))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.grid(alpha=.3)
    a.yaxis.set_major_formatter(StrMethodFormatter('{x:.1f}'))
    a.yaxis.set_minor_locator(NullLocator())
    a.legend(fontsize=8)
    return fig

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--tokens', default='.125,.25,.5,1,2,4,8', help='millions, rising', type=lambda o: [*map(float, o.split(','))])
    p.add_argument('--sizes', default='1,2,4', type=lambda o: [*map(int, o.split(','))])
    p.add_argument('--precision', default='bf16')
    p.add_argument('--most', type=float, default=5., help='minutes of a core for a cell')
    p.add_argument('--table', action='store_true', help='run no cell')
    p.add_argument('--work', type=Path, default=results/'sizes', help='directory of finished rows')
    args = p.parse_args()
    import torch
    torch.set_num_threads(1)
    quiet()
    rows,left_out = Rows(args.work, settings=settings, labels=labels, precision=args.precision),[]
    for seed in map(int, args.seeds.split(',')):
        minutes = dict.fromkeys(args.sizes, 0.)
        for tokens in args.tokens:
            for size in args.sizes:
                long,there = 2*minutes[size]>args.most,any((o['size'],o['tokens'],o['seed'])==(size,tokens,seed) for o in rows.all)
                if long or args.table and not there: left_out.append(dict(size=size, tokens=tokens, why=f'over {args.most:g} minutes' if long else 'not run'))
                else: minutes[size] = rows.get(lambda: cell(size, tokens, seed, args.precision, max(args.tokens)), size=size, tokens=tokens, seed=seed)['core minutes']
    table = pd.DataFrame([dict(size=o['size'], tokens=o['tokens'], **o['validation'], probe=o['probe'], weights=o['weights'], minutes=o['core minutes']) for o in rows.all])
    table = table.groupby(['size','tokens'], as_index=False).mean()
    print(table.round(3).to_string(), f'left out: {left_out}', sep='\n')
    if args.work!=results/'sizes': return
    rows = labelled()
    tfidf = 100-tfidf_error(rows[~rows.is_valid], rows[rows.is_valid])
    plot(table, args.tokens, tfidf).savefig(results.parent.parent/'nbs/images/sizes.png', dpi=80)
    lines = {size:dict(zip(('exponent','bits at a million'), (round(float(v[0]), 4), round(float(np.exp(v[1])), 3)))) for size,o in table.groupby('size') if len(o)>2 for v in [fitted(o)]}
    save('sizes', args, dict(settings=settings, labels=labels, precision=args.precision), dict(tfidf=round(tfidf, 2), cells=table.round(4).to_dict('records'), lines=lines, **{'left out':left_out}))

if __name__=='__main__': main()
