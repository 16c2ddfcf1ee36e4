"Rare classes count: weights of classes, scores, costs of decisions"
import numpy as np, pandas as pd, pytest, torch
from sklearn.linear_model import LogisticRegression
from fastformers.data.block import classifier_dls
from fastformers.data.labels import class_weights
from fastformers.inference.baseline import TextBaseline
from fastformers.inference.predictor import from_hf
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
