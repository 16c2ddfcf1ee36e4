"""Which way to weigh words tells the truth: `explain` of a classifier on AG News and SST-2

    FASTFORMERS_DATA=... python benchmarks/attribution.py

MiniLM, trained as typed on 400 labelled rows as they come; 150 other training rows are explained. No test set is read. The rows are in results/attribution/rows.jsonl."""
import torch
from classify import Rows
from common import *
from compare import draw, sets

def table(name, seed):
    from fastformers.interpret.attribution import faithfulness
    from fastformers.learner.save import as_predictor
    from fastformers.ulmfit.stage import fine_tune_classifier
    train,dev,_ = sets[name][1]()
    learn = fine_tune_classifier(draw(train, 400, seed), 'minilm', max_len=128).learner
    return {'methods':faithfulness(as_predictor(learn), dev.text[:150].tolist()).round(4).to_dict('index')}

if __name__=='__main__':
    p = parser(__doc__)
    p.set_defaults(seeds='1')
    args = p.parse_args()
    torch.set_num_threads(1)
    quiet()
    rows = Rows(results/'attribution')
    rows.settings = {'commit':commit, 'precision':precision()}
    for name in ('agnews','sst2'):
        for seed in map(int, args.seeds.split(',')): rows.get(lambda: table(name, seed), 'methods', set=name, seed=seed)
    for o in rows.all: print(o['set'], pd.DataFrame(o['methods']).T.round(3).to_string(), sep='\n')
