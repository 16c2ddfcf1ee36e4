"Maps of words and texts, on one tiny network whose answers are known"
import numpy as np, pandas as pd, pytest, torch
from fastformers.data.block import classifier_dls
from fastformers.inference.predictor import Predictor
from fastformers.learner.core import classifier_learner
from fastformers.learner.save import as_predictor
from fastformers.lens.maps import plot_text_map, plot_word_map, separation, text_map, word_map, word_states
from fastformers.models.core import HFModel
from fastformers.models.load import load_body
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.encode import HFTokenizer

def network(family='bert', **kwargs):
    "A random network with a tokenizer, as a predictor without labels"
    torch.manual_seed(0)
    return Predictor(HFModel(*load_body(tiny_arch(family, **kwargs))), HFTokenizer(tiny_tok(family)), device='cpu')

@pytest.fixture(scope='module')
def tiny(): return network()
@pytest.fixture(scope='module')
def learn():
    df = tiny_df()
    return classifier_learner(classifier_dls(df, tiny_tok('bert')), tiny_arch('bert'))

films = ['A fine film.', 'The film was so dull that I left.', 'Nobody liked it, but I found the FILM great.']

# words

def test_states_are_those_of_the_word(tiny):
    got = word_states(tiny, films, 'film')
    assert got.shape==(4,3,32)
    tok = tiny.tok.tok
    for i,t in enumerate(films):
        a = t.lower().index('film')
        enc = tok(t, return_offsets_mapping=True, return_tensors='pt')
        (offsets,) = enc.pop('offset_mapping').tolist()
        at = [j for j,(s,e) in enumerate(offsets) if s<a+4 and e>a]
        with torch.no_grad(): hs = tiny.model.body(**enc, output_hidden_states=True).hidden_states
        assert np.allclose(got[:,i], torch.stack([h[0,at].mean(0) for h in hs]), atol=1e-5)

def test_whole_words_and_phrases(tiny):
    with pytest.raises(ValueError, match="'film' does not occur in text 1: 'Two films'"): word_states(tiny, ['A film', 'Two films'], 'film')
    with pytest.raises(ValueError, match='in text 0'): word_states(tiny, ['A microfilm'], 'film')
    two = word_states(tiny, ['a (film.) was dull'], 'film.) was')
    assert two.shape==(4,1,32) and not np.allclose(two, word_states(tiny, ['a (film.) was dull'], 'film'))

def test_the_nearest_of_two_equal_texts_is_the_other(tiny):
    words = word_map(tiny, films+films, 'film', list('abcabc'))
    assert (words[words.layer>0].nearest.to_numpy()==[3,4,5,0,1,2]*3).all() and (separation(words).accuracy[1:]==1).all()
    assert set(words.layer)=={0,1,2,3} and words[words.layer==2].text.tolist()==films+films
    xy = words[words.layer==3][['x','y']].to_numpy()
    assert np.allclose(xy[:3], xy[3:], atol=1e-4) and np.allclose(xy.mean(0), 0, atol=1e-4)

def test_equally_near_neighbours_are_drawn_by_lot(tiny):
    same = ['film a','film b','film c','film d','film e','film f'] # the embeddings of `film` are equal
    words = [word_map(tiny, same, 'film', list('aaabbb'), seed=i) for i in range(60)]
    assert .3<np.mean([separation(o, 1).accuracy[0] for o in words])<.5 # 2 of 5
    assert all((o.nearest!=o.row).all() for o in words)

def test_separation_by_hand():
    words = pd.DataFrame(dict(layer=0, sense=list('aabb'), nearest=[1,0,3,0]))
    o = separation(words).loc[0]
    assert o.accuracy==.75 and abs(o.chance-1/3)<.03 and o.limit==.75 # of aabb, abab, abba
    assert separation(pd.concat([words, words.assign(layer=1, nearest=[2,3,0,1])])).accuracy.tolist()==[.75,0]

def test_pictures(tiny):
    words = word_map(tiny, films+films, 'film', list('abcabc'))
    assert [o.get_title() for o in plot_word_map(words)]==['embeddings: %.2f'%separation(words,1).accuracy[0], 'layer 2: 1.00', 'layer 3: 1.00']
    assert len(plot_word_map(word_map(tiny, films, 'film'), [1]))==1

# texts

def test_a_map_of_texts(tiny, learn):
    df = tiny_df()
    plain = text_map(tiny, df.text)
    assert list(plain)==['text','label','x','y'] and 'wrong' not in text_map(tiny, df.text, df.label)
    table = text_map(learn, df.text, df.label)
    class Twice:
        def fit_transform(self, x): return 2*x[:,:2]
    assert np.allclose(text_map(learn, df.text, reduce=Twice())[['x','y']], 2*as_predictor(learn).vectors(df.text.tolist())[:,:2])
    assert (table.wrong==(table.answer!=df.label)).all() and 0<table.wrong.sum()<60 and table.text.tolist()==df.text.tolist()
    assert plot_text_map(table).get_title()==f'{table.wrong.sum()} of 60 answers are wrong'
