"Rare classes count: weights of classes, scores, costs of decisions"
import numpy as np, pandas as pd, pytest, torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, matthews_corrcoef, roc_auc_score
from fastformers.cli import main
from fastformers.compare.curve import label_curve
from fastformers.compare.entries import Entry
from fastformers.compare.leaderboard import leaderboard
from fastformers.data.block import classifier_dls
from fastformers.data.labels import class_weights
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.onnx import to_onnx
from fastformers.inference.predictor import Ensemble, from_hf
from fastformers.inference.output_layer import output_layer
from fastformers.learner.core import classifier_learner
from fastformers.learner.probe import output_inputs
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.ulmfit.recipe import Recipe, TaskConfig, read_recipe
from fastformers.ulmfit.stage import fine_tune_classifier

small = dict(bs=8, device='cpu')
def rare_df(n=90, every=9):
    "Two classes, one row in `every` is spam, its texts have a word of their own in half of the rows"
    spam = np.arange(n)%every==0
    return pd.DataFrame({'text':[f"{'buy ' if s and i%2 else ''}letter number {i} of {i%7}" for i,s in enumerate(spam)],
                         'label':np.where(spam, 'spam', 'ham'), 'is_valid':np.arange(n)%4==0})

# ---- weights of classes

@pytest.mark.parametrize('w', ['balanced', 'spam: 7'])
def test_one_setting_for_network_probe_and_linear_model(w, tmp_path):
    df = rare_df()
    train = df[~df.is_valid]
    learn = classifier_learner(classifier_dls(df, tiny_tok(), **small), tiny_arch('bert'), head='linear', class_weights=w)
    counts = train.label.value_counts()[['ham','spam']].to_numpy()
    by = len(train)/(2*counts) if w=='balanced' else [1,7]
    assert learn.loss_func.func.weight.tolist()==pytest.approx(list(by))
    x,y = output_inputs(learn, learn.dls.train)
    probe = LogisticRegression(C=30, max_iter=1000, class_weight=w if w=='balanced' else dict(enumerate(by))).fit(x, y)
    learn.fit_probe()
    layer = output_layer(learn.model)
    w_out,b_out = layer.weight.detach().numpy(),layer.bias.detach().numpy()
    assert np.allclose((x@w_out.T+b_out)@[-1,1], probe.decision_function(x), atol=1e-3)
    words = TextBaseline.fit(train.text, train.label, class_weights=w)
    again = from_hf(words.save(tmp_path/'words'))
    assert again.task.class_weights==words.task.class_weights==('balanced' if w=='balanced' else {'spam':7.})
    assert words('buy letter')[0]['score']!=TextBaseline.fit(train.text, train.label)('buy letter')[0]['score']

def test_weights_of_several_labels_are_of_texts_with_the_label():
    df = tiny_df().assign(label=lambda d: d.label.where(d.index%2==0, d.label+';long'))
    dls = classifier_dls(df, tiny_tok(), **small)
    learn = classifier_learner(dls, tiny_arch('bert'), class_weights='balanced')
    y = np.array([o.tolist() for o in dls.train_ds.tls[-1]])
    assert learn.loss_func.func.pos_weight.tolist()==pytest.approx(list((len(y)-y.sum(0))/y.sum(0)))
    assert class_weights(dls, 'long: 3').tolist()==[3. if o=='long' else 1. for o in dls.vocab]

def test_a_recipe_holds_weights_by_name(tmp_path):
    for w in (None, 'balanced', {'spam':10., 'very, very bad':.5}):
        (tmp_path/'a.ini').write_text(Recipe(classifier=TaskConfig(class_weights=w)).to_ini())
        got = read_recipe(tmp_path/'a.ini').classifier.class_weights
        assert (got if got in (None,'balanced') else TextBaseline.fit(['a','b'], ['spam','very, very bad'], class_weights=got).task.class_weights)==w

def test_a_stage_hands_weights_on(tmp_path, caplog):
    stage = fine_tune_classifier(rare_df(), tiny_arch('bert'), tmp_path/'a', tok=tiny_tok(), class_weights={'spam':4}, epochs=1, precision='fp32', refit=True)
    assert stage.plan['class_weights']=={'spam':4} and stage.settings['class_weights']=={'spam':4}
    assert from_hf(tmp_path/'a').task.class_weights=={'spam':4.} and stage.learner.loss_func.func.weight.tolist()==[1.,4.]

@pytest.mark.parametrize('w,says', [({'spma':2}, "'spma' is no class; the classes are 'ham', 'spam'"), ({'spam':0}, 'above 0'), ({'spam':-1}, 'above 0'), ('balance', "'balanced' or {name: weight}")])
def test_wrong_weights_are_refused(w, says):
    with pytest.raises(ValueError, match=says): fine_tune_classifier(rare_df(), tiny_arch('bert'), tok=tiny_tok(), class_weights=w, epochs=1)

def test_numbers_have_no_class_weights():
    with pytest.raises(ValueError, match='one class or several labels'):
        fine_tune_classifier(rare_df().assign(label=lambda d: d.index/3), tiny_arch('bert'), tok=tiny_tok(), class_weights='balanced', epochs=1)

def test_classes_weigh_the_same_where_one_has_nine_tenths(caplog, tmp_path):
    df,how = rare_df(200, 19),dict(tok=tiny_tok(), epochs=1, precision='fp32')
    def loss(df, **kw):
        dls = classifier_dls(df, tiny_tok(), **small)
        return classifier_learner(dls, tiny_arch('bert'), **kw).loss_func.func.weight
    few,many = np.unique(df[~df.is_valid].label, return_counts=True)[1][::-1]
    with caplog.at_level('INFO'): assert (loss(df)[1]/loss(df)[0]).item()==pytest.approx(many/few)
    assert 'classes weigh the same: ' in caplog.text
    assert loss(df, class_weights='equal') is None and loss(rare_df()) is None
    own = classifier_learner(classifier_dls(df, tiny_tok(), **small), tiny_arch('bert'), loss_func=torch.nn.CrossEntropyLoss())
    assert own.model.task.class_weights is None # what the probe begins with is as the loss
    with caplog.at_level('INFO'): stage = fine_tune_classifier(df, tiny_arch('bert'), tmp_path/'a', **how)
    assert 'as much accuracy; so classes weigh the same' in caplog.text
    assert stage.plan['class_weights']=='balanced' and '94.5%' in stage.plan.settings['class_weights'][1]
    assert from_hf(tmp_path/'a').task.class_weights=='balanced'
    for asked in (dict(class_weights='equal'), dict(score='accuracy')):
        stage = fine_tune_classifier(df, tiny_arch('bert'), **asked, **how)
        assert not stage.learner.model.task.class_weights and stage.learner.loss_func.func.weight is None

@pytest.mark.parametrize('w,found', [(None,'balanced'), ('equal',{}), ({'spam':3},{'spam':3.})])
def test_a_comparison_chooses_the_weights_too(w, found):
    board = leaderboard(rare_df(200, 19), entries=['TF-IDF'], seeds=(1,), minutes=1, class_weights=w, log=lambda o: None)
    assert board.task.class_weights==board.best.task.class_weights==found

# ---- scores

def test_the_score_follows_the_labels(caplog):
    df = rare_df(200, 19)
    with caplog.at_level('INFO'): stage = fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok(), epochs=1, precision='fp32')
    assert stage.score_name=='f1_macro' and 'the score is the macro F1, average precision beside it: 94.5% of the 200 rows are' in caplog.text
    preds,y = stage.learner.get_preds()
    assert stage.score.mean()==pytest.approx(f1_score(y, stage.learner.model.task.decide(preds), average='macro'))==pytest.approx(stage.metrics['f1_macro'])
    assert stage.metrics['average_precision']==pytest.approx(average_precision_score(y, preds[:,1]))
    assert 'f1_macro' in stage.interval() and 'average precision' in stage.interval()
    assert 'largest class 0.48' in caplog.text                                  # what a constant has
    usual = fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok(), epochs=1, score='accuracy')
    assert usual.score_name=='accuracy' and {*usual.score}<={0.,1.} and 'f1_macro' not in usual.metrics
    assert 'f1_macro' in stage.learner.verdict().columns

def test_a_verdict_scores_the_probe_as_the_learner():
    learn = classifier_learner(classifier_dls(rare_df(120, 13), 'wiki-mini', **small), 'wiki-mini').fit_probe()
    table = learn.verdict()
    assert 'f1_macro' in table and 'frozen probe' not in table.index, table      # it is the learner itself

def test_one_rare_row_is_not_a_score_of_one(caplog, tmp_path):
    df = pd.DataFrame({'text':[f'letter {i} of {i%7}' for i in range(100)], 'label':['spam']+['ham']*99})
    stage = fine_tune_classifier(df, tiny_arch('bert'), tmp_path/'a', tok=tiny_tok(), epochs=1)
    assert stage.score is None and "no held-out row has the class spam, which is not tested" in stage.interval() and '1.000' not in caplog.text

@pytest.mark.parametrize('score', ['mcc', 'balanced_accuracy', 'roc_auc', 'f1_weighted', 'own'])
def test_a_stage_takes_scores_by_name_and_functions(score):
    def own(y, scores): return -float(((scores.argmax(1)!=y)*np.where(y==1, 10, 1)).mean())
    stage = fine_tune_classifier(rare_df(), tiny_arch('bert'), tok=tiny_tok(), epochs=1, score=own if score=='own' else score)
    preds,y = stage.learner.get_preds()
    want = own(y.numpy(), preds.numpy()) if score=='own' else {'mcc':matthews_corrcoef, 'balanced_accuracy':balanced_accuracy_score, 'roc_auc':lambda a,b: roc_auc_score(a, preds[:,1]),
            'f1_weighted':lambda a,b: f1_score(a, b, average='weighted')}[score](y, preds.argmax(1))
    assert stage.score_name==score and stage.score.mean()==pytest.approx(want, abs=1e-6)

def _wrong_scale(y, scores): return f1_score(y, scores)
def _mean_error(y, scores): return np.abs(y-scores.argmax(1)).mean()

@pytest.mark.parametrize('score,says', [(_wrong_scale, r'_wrong_scale raised: .*it gets targets \(60,\) and scores \(60, 3\)'),
                                        (_mean_error, 'of right answers is 0, of wrong ones .*higher is better'), (lambda y, scores: None, 'the score score raised')])
def test_a_score_that_cannot_be_used_is_refused_before_training(score, says, tmp_path, monkeypatch):
    monkeypatch.setattr('fastformers.ulmfit.read.hold_out_rows', lambda *_: pytest.fail('too late'))
    with pytest.raises(ValueError, match=says): fine_tune_classifier(tiny_df(), tiny_arch('bert'), tmp_path/'o', tok=tiny_tok('bert'), score=score, epochs=1)
    with pytest.raises(ValueError, match=says): leaderboard(tiny_df(), score=score, minutes=.1)

def test_numbers_are_scored_by_ranks():
    df = rare_df().assign(label=lambda d: d.index%7/3)
    stage = fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok(), epochs=1, score='spearman')
    preds,y = stage.learner.get_preds()
    assert stage.score.mean()==pytest.approx(spearmanr(preds[:,0], y.reshape(-1)).statistic, abs=1e-5)
    with pytest.raises(ValueError, match='f1_macro is for classes'): fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok(), score='f1_macro')
    with pytest.raises(ValueError, match='did you mean'): fine_tune_classifier(rare_df(), tiny_arch('bert'), tok=tiny_tok(), score='f1_marco')

# ---- costs of decisions

def test_answers_of_least_cost_are_the_same_everywhere(tmp_path):
    df,cost = tiny_df(),{('negative','positive'):20, ('neutral','positive'):3}
    learn = classifier_learner(classifier_dls(df, tiny_tok(), **small), tiny_arch('bert'))
    with learn.no_logging(), learn.no_bar(): learn.fit(1, 1e-3)
    texts,before = df.text.tolist(),None
    plain = from_hf(learn.to_hf(tmp_path/'plain'), device='cpu')
    costs = learn.tune_thresholds(cost=cost)
    assert costs['least expected cost']<=costs['highest score']+.3
    ask = from_hf(learn.to_hf(tmp_path/'a'), device='cpu')
    c = np.array([[0,1,20],[1,0,3],[1,1,0]])
    want = [ask.labels[i] for i in (ask.scores(texts).numpy()@c).argmin(1)]
    assert [o['label'] for o in ask(texts)]==want!=[o['label'] for o in plain(texts)]
    both = Ensemble([plain, ask])
    mean = [ask.labels[i] for i in (both.scores(texts).numpy()@c).argmin(1)]
    assert [o['label'] for o in both(texts)]==mean==[o['label'] for o in from_hf(both.save(tmp_path/'both'), device='cpu')(texts)]
    pytest.importorskip('onnxruntime'); pytest.importorskip('onnxscript')
    to_onnx(tmp_path/'a')
    assert [o['label'] for o in from_hf(tmp_path/'a', backend='onnx')(texts)]==want
    kept = classifier_learner(learn.dls, tmp_path/'a')
    assert kept.model.task.costs==[['negative','positive',20.],['neutral','positive',3.]] and torch.equal(kept.get_preds(with_decoded=True)[2], learn.get_preds(with_decoded=True)[2])

# ---- comparisons

def found_df(n=240, every=20):
    "Rare texts that their words tell"
    spam = np.arange(n)%every==0
    return pd.DataFrame({'text':[f"{'buy pills now' if s else 'see you at noon'} number {i}" for i,s in enumerate(spam)], 'label':np.where(spam, 'spam', 'ham')})

def board(df, **kwargs): return leaderboard(df, entries=['largest class','TF-IDF'], seeds=(1,2), minutes=1, log=lambda o: None, **kwargs)

def test_an_entry_whose_best_label_is_never_the_rare_one_may_find_it_all_the_same():
    df = found_df().assign(text=lambda d: [f'cheap{i}pills' if l=='spam' else f'green{i}fields' for i,l in enumerate(d.label)])
    res = leaderboard(df, entries=['TF-IDF','characters'], seeds=(1,2), minutes=1, class_weights={'ham':1000}, log=lambda o: None)
    t = res.table
    assert (t.recall['characters'],t.recall['TF-IDF'])==(1,0) and (np.concatenate([res.fit('characters', i)[0].numpy() for i in (1,2)])[:,1]<.5).all()
    assert res.winner=='characters'==t.index[0]==t.average_precision.idxmax()

def test_a_winner_that_finds_no_rare_text_says_so():
    df = found_df().assign(text=lambda d: [f'{["green","blue"][i%2]}{i}fields' for i in d.index])
    says = leaderboard(df, entries=['TF-IDF'], seeds=(1,2), minutes=1, log=lambda o: None).sentences()
    assert 'It finds no text of the rarest class; label more of its texts.' in says

def test_a_constant_is_never_the_best(tmp_path):
    res = board(found_df(), class_weights='balanced', path=tmp_path/'a')
    assert res.winner=='TF-IDF' and res.task.score_name=='f1_macro' and res.best('buy pills now')[0]['label']=='spam'
    t = res.table
    assert t.score['largest class']==pytest.approx(.487, abs=.01) and t.recall['largest class']==0 and t.recall['TF-IDF']>.9 and t.precision['TF-IDF']>.9
    assert 'The score is the macro F1' in '\n'.join(res.sentences()) and {'f1_macro','average precision','recall','precision'}<={*res.shown()}
    y,scores = (np.concatenate([f(i) for i in (0,1)]) for f in (lambda i: res.y[res.folds[i][1]], lambda i: res.fit('TF-IDF', i+1)[0].numpy()))
    assert t.score['TF-IDF']==pytest.approx(f1_score(y, scores.argmax(1), average='macro')) and res.best.task.class_weights=='balanced'
    usual = board(found_df(), score='accuracy')
    assert usual.task.score is None and 'recall' not in usual.table
    with pytest.raises(ValueError, match="'spma' is no class"): board(found_df(), class_weights={'spma':2})

def test_a_class_of_one_row_is_named():
    with pytest.raises(ValueError, match="one row of the class 'spam', which cannot be trained on and tested"): board(found_df(100, 1000))
    df = found_df(100)
    df.loc[7, 'label'] = 'other'
    assert 'Not tested, since no seed has it in training and among the scored rows: other.' in board(df).sentences()

def test_a_curve_has_the_score_too():
    df = found_df()
    curve = label_curve(df.assign(is_valid=df.index%2==1, label=np.where(df.index%21<1, 'spam', 'ham')), sizes=[60,100], seeds=[1], entries=['TF-IDF'])
    assert curve.measure=='f1_macro' and (curve.table.score<=1).all()

def test_the_command_compares_rare_rows(tmp_path, capsys):
    found_df().to_csv(tmp_path/'a.csv', index=False)
    assert main(['compare', str(tmp_path/'a.csv'), '--entries', 'largest class,TF-IDF', '--seeds', '1,2', '--minutes', '1', '--output', str(tmp_path/'out'), '--class-weights', 'spam: 20', '--score', 'mcc'])==0
    assert 'Use TF-IDF: mcc' in capsys.readouterr().out

@pytest.mark.parametrize('refit', [False,True])
def test_a_stage_answers_the_rarer_class_as_often_as_the_rows_have_it(tmp_path, refit):
    df = found_df(300, 19).sample(frac=1, random_state=0)
    stage = fine_tune_classifier(df, 'wiki-mini', tmp_path/'a', epochs=0, refit=refit)
    t,share = stage.learner.model.task.threshold,(df.label=='spam').mean()
    found = stage.learner.get_preds()[0][:,1]>t
    assert found.sum()==round(share*len(found)) and 'as often as the labelled rows have it' in stage.chosen[-1]
    assert from_hf(tmp_path/'a').task.threshold==t
    few = fine_tune_classifier(df[:40], 'wiki-mini', epochs=0).learner.model.task # 8 held-out rows, of which no whole one is spam
    assert few.often and few.threshold is None

def test_a_comparison_answers_the_rarer_class_as_often_as_the_rows_have_it(tmp_path):
    df = found_df(200, 19).sample(frac=1, random_state=0)
    def own(rows): # an entry that answers it always, such as one from a checkpoint with a threshold
        res = TextBaseline.fit(rows.texts, rows.labels, rows.task)
        res.task.threshold = 0.
        return res
    ways = ['largest class', 'TF-IDF', Entry('own threshold', own)]
    for names in (('ham','spam'), ('spam','ham')): # the rarer class first or second
        df['label'] = df.label.map({'ham':names[0], 'spam':names[1]})
        board = leaderboard(df, entries=ways, seeds=(1,2), minutes=1, path=tmp_path/names[0], log=lambda o: None)
        share = (df.label==names[1]).mean()
        assert board.task.often==(names[1], pytest.approx(share)) and 'as often' in board.info['score']
        assert board.rare('largest class')['recall']==0 and board.rare('own threshold')==board.rare('TF-IDF')
        scores = board.fits['TF-IDF',1][0], board.fits['TF-IDF',2][0]
        i = board.task.labels.index(names[1])
        t = board.threshold if i else 1-board.threshold
        assert abs((torch.cat(scores)[:,i]>t).float().mean()-share)<.02 and board.rare('TF-IDF')['recall']>.9
        again = from_hf(tmp_path/names[0]/'best')
        assert again.task.threshold==board.best.task.threshold==pytest.approx(board.threshold)
        df['label'] = df.label.map({names[0]:'ham', names[1]:'spam'})
    three = pd.concat([found_df(200, 19), pd.DataFrame({'text':['a bill']*3, 'label':['bill']*3})])
    assert leaderboard(three, entries=['TF-IDF'], seeds=(1,2), minutes=1, log=lambda o: None).task.often is None
