"""Spanish from nothing: a tokenizer and a general LM on Wikipedia within 20 minutes, then masked LM and a classifier on a fake news corpus.

    FASTFORMERS_DATA=... python benchmarks/spanish.py            # on the corpus' development articles
    FASTFORMERS_DATA=... python benchmarks/spanish.py --final    # and on its test articles (another period, other topics)

The configuration of stages 2 and 3 is `spanish.ini`.
"""
import tempfile, time
import pandas as pd
from pathlib import Path
from common import *

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--minutes', type=float, default=20, help='training budget of the general LM')
    args = p.parse_args()
    wiki,train,dev,test = data_files('wiki_es/train.txt.gz', 'fakenews_es/train.csv.gz', 'fakenews_es/dev.csv.gz', 'fakenews_es/test.csv.gz')
    from fastformers.text.readers import read_texts
    from fastformers.ulmfit.recipe import read_recipe
    from fastformers.ulmfit.run import ulmfit
    from fastformers.ulmfit.stage import pretrain_lm
    quiet()
    seeds = [int(o) for o in args.seeds.split(',')]
    recipe = read_recipe(here/'spanish.ini')
    df = pd.concat([read(train).assign(is_valid=False), read(dev).assign(is_valid=True)], ignore_index=True)
    df = df[~(df.is_valid & df.text.isin(df.text[~df.is_valid]))].reset_index(drop=True)[['text','label','is_valid']]  # 4 development texts also occur in training
    test = read(test)[['text','label']]
    out = Path(args.out or tempfile.mkdtemp())
    start = time.time()
    articles = read_texts(wiki)
    general = pretrain_lm(articles, out/'general', minutes=args.minutes, vocab_sz=8000, lr=1e-3, seed=seeds[0])
    fills = {o:[(c['token_str'], round(c['score'],3)) for c in general.learner.fill_mask(o, n=3)[0]] for o in ('La capital de Francia es [MASK].', 'El río [MASK] por la ciudad.')}
    report = ulmfit(df, test=test if args.final else None, arch=out/'general', recipe=recipe, path=out/'run', seeds=seeds)
    scratch = [s for s in report.stages if s.name=='classifier from the general LM']
    arms = {'three stages':[s for s in report.stages if s.name=='classifier'], 'without stage 2':scratch}
    # the same network with random weights: what did the 20 minutes buy?
    from transformers import AutoConfig
    from fastformers.ulmfit.stage import fine_tune_classifier
    from fastformers.text.tokenizer import load_tokenizer
    c = recipe.classifier
    arms['without pretraining'] = [fine_tune_classifier(df, AutoConfig.from_pretrained(out/'general'), tok=load_tokenizer(str(out/'general')), test=test if args.final else None, epochs=c.epochs, lr=c.lr,
                                                        bs=c.bs, discr=c.discr, max_len=recipe.classifier.max_len, seed=s, name='random') for s in seeds]
    tr,va = df[~df.is_valid],df[df.is_valid]
    figures = {'minutes':round((time.time()-start)/60,1), 'general LM':{'metrics':general.metrics,'minutes':round(general.seconds/60,1),'epochs':general.schedule.total, **general.data, 'fill_mask':fills},
               'gains':report.gains().to_dict('records'),
               'validation error %':{k:stat([100*(1-s.metrics['accuracy']) for s in v]) for k,v in arms.items()} | {'TF-IDF + logistic regression':round(tfidf_error(tr,va),2)}}
    if args.final: figures['test'] = {'test error %':{k:stat([100*(1-s.test['accuracy']) for s in v]) for k,v in arms.items()} | {'TF-IDF + logistic regression':round(tfidf_error(df,test),2)}}
    save('spanish', args, {'recipe':recipe.to_ini(here), 'seeds':seeds, 'minutes':args.minutes}, figures, args.final)

if __name__=='__main__': main()
