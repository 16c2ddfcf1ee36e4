"""What a language model knows without labels: grammar by the score of sentences (CoLA), sentiment by a choice of two words (SST-2).

    FASTFORMERS_DATA=... python benchmarks/zero_shot.py            # a minute on one core

Dev sets, read once. The template and the words were set before: 'It was [MASK].', great and terrible (Gao et al. 2021).
"""
from common import *

origin.update({'cola/dev_in_domain.csv':'CoLA (Warstadt et al. 2019), as CSV text,label', 'sst2/dev.csv':'SST-2 as in GLUE, as CSV text,label'})

def auc(y, score, n=1000):
    "Area under the ROC curve and its 95 % interval from `n` bootstrap samples of rows"
    from sklearn.metrics import roc_auc_score
    y,score,rng = np.asarray(y),np.asarray(score),np.random.default_rng(42)
    draws = [roc_auc_score(y[i], score[i]) for i in rng.integers(len(y), size=(n,len(y)))]
    return dict(auc=round(roc_auc_score(y, score),3), low=round(np.quantile(draws,.025),3), high=round(np.quantile(draws,.975),3))

def main():
    p = parser(__doc__.split('\n')[0])
    p.add_argument('--arch', default='wiki-mini', help='a masked or causal language model')
    args = p.parse_args()
    from fastformers.inference.lm_predictor import lm_from_hf
    cola,sst2 = map(read, data_files('cola/dev_in_domain.csv', 'sst2/dev.csv'))
    lm,start = lm_from_hf(args.arch, device='cpu'),time.time()
    s,y = lm.score(cola.text),cola.label=='acceptable'
    figures = {'CoLA':{k:auc(y, v) for k,v in s.items()}, 'CoLA seconds':round(time.time()-start,1)}
    start,mask = time.time(),lm.tok.tok.mask_token or '[MASK]'
    c,y = lm.choose(sst2.text.str.strip()+f' It was {mask}.', ['great','terrible']),sst2.label=='positive'
    said = c.great>c.terrible
    figures['SST-2'] = dict(auc(y, c.great), accuracy=round(float((said==y).mean()),3), majority=round(float(max(y.mean(), 1-y.mean())),3), great=int(said.sum()), rows=len(y))
    figures['SST-2 seconds'] = round(time.time()-start,1)
    for k,v in figures.items(): print(k, v)
    save('zero_shot', args, {'arch':args.arch}, figures)

if __name__=='__main__': main()
