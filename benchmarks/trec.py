"""TREC-6 with MiniLM: three stages by `ulmfit`, beside TF-IDF with logistic regression and plain full fine-tuning.

    FASTFORMERS_DATA=... python benchmarks/trec.py            # on a validation split drawn from the training questions
    FASTFORMERS_DATA=... python benchmarks/trec.py --final    # and on the 500 test questions

The configuration is `trec.ini`. 10 % of the training questions, stratified, are validation; plain fine-tuning differs from the recipe in nothing but its table: all groups at one rate,
straight from the checkpoint.
"""
import numpy as np, time
from common import *

def main():
    args = parser(__doc__.split('\n')[0]).parse_args()
    train_csv,test_csv = data_files('trec/train.csv', 'trec/test.csv')
    from fastformers.data.labels import class_names, split_rows
    from fastformers.ulmfit.recipe import read_recipe
    from fastformers.callback.schedule import full_tune
    from fastformers.ulmfit.run import ulmfit
    from fastformers.ulmfit.stage import fine_tune_classifier
    quiet()
    seeds = [int(o) for o in args.seeds.split(',')]
    recipe = read_recipe(here/'trec.ini')
    df,test = read(train_csv)[['text','label']], read(test_csv)[['text','label']]
    train,valid = split_rows(df, None, .1, names=class_names(df, 'label'))
    df['is_valid'] = np.isin(np.arange(len(df)), valid)
    clean = ~test.text.isin(df.text).to_numpy() # test questions that do not occur in training

    start = time.time()
    report = ulmfit(df, test=test if args.final else None, recipe=recipe, path=args.out, seeds=seeds)
    arms = {'three stages':[s for s in report.stages if s.name=='classifier'],
            'without the LM stage':[s for s in report.stages if s.name=='classifier from the general LM']}
    c = recipe.classifier
    arms['plain full fine-tuning'] = [fine_tune_classifier(df, recipe.model.arch, test=test if args.final else None, epochs=c.epochs, lr=c.lr, bs=c.bs, discr=1., schedule=full_tune,
                                                           max_len=recipe.classifier.max_len, seed=s, name='plain') for s in seeds]
    tr,va = df[~df.is_valid],df[df.is_valid]
    figures = {'minutes':round((time.time()-start)/60,1), 'gains':report.gains().to_dict('records'),
               'validation error %':{k:stat([100*(1-s.metrics['accuracy']) for s in v]) for k,v in arms.items()} | {'TF-IDF + logistic regression':round(tfidf_error(tr,va),2)}}
    if args.final:
        figures['test'] = {'test error %':{k:stat([100*(1-s.test['accuracy']) for s in v]) for k,v in arms.items()} | {'TF-IDF + logistic regression':round(tfidf_error(df,test),2)},
                           'without rows seen in training':{k:stat([100*(1-s.test_score[clean].mean()) for s in v]) for k,v in arms.items()}, 'such rows':int((~clean).sum())}
    save('trec', args, {'recipe':recipe.to_ini(here), 'seeds':seeds}, figures, args.final)

if __name__=='__main__': main()
