"Where some rows were chosen to be labelled, those that were drawn at random (`audit`) are held out, at every door"
import numpy as np, pandas as pd, pytest
from fastformers.all import *
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.data.block import item_texts
from fastformers.data.labels import lm_rows, split_rows
from fastformers.data.rows import Rows

@pytest.fixture(scope='module')
def df(): return tiny_df().rename(columns={'is_valid':'audit'})

@pytest.fixture(scope='module')
def arch(tmp_path_factory):
    path = tmp_path_factory.mktemp('audit')/'bert'
    classifier_learner(classifier_dls(tiny_df(), tiny_tok()), tiny_arch('bert'), pretrained=False, head_init='random').to_hf(path)
    return path

held = {
    'split_rows':lambda df,_: df.text.iloc[split_rows(df)[1]],
    'Rows':lambda df,arch: Rows(df).hold_out().frame.query('is_valid').text,
    'classifier_dls':lambda df,arch: item_texts(classifier_dls(df, tiny_tok()).valid_ds),
    'lm_dls':lambda df,arch: df.text.iloc[split_rows(lm_rows(df))[1]]}

@pytest.mark.parametrize('door', held)
def test_audit_rows_are_held_out(df, arch, door):
    assert sorted(held[door](df, arch))==sorted(df.text[df.audit])

def test_stage_comparison_and_curve_score_audit_rows(df, arch):
    assert sorted(item_texts(fine_tune_classifier(df, arch, epochs=0).learner.dls.valid_ds))==sorted(df.text[df.audit])
    board = leaderboard(df, minutes=1, seeds=(1,2), entries=['TF-IDF','characters'])
    assert (~np.isnan(board.rows('TF-IDF'))).any(0).tolist()==df.audit.tolist()
    curve = label_curve(df, sizes=[20,45], seeds=(1,), entries=['TF-IDF'])
    assert all(len(o)==df.audit.sum() for o in curve.rows.hits)

@pytest.mark.parametrize('door', [*held,'fine_tune_classifier','leaderboard','ulmfit'])
def test_audit_and_is_valid_are_one_too_many(df, arch, door):
    both = df.assign(is_valid=df.audit)
    doors = held | dict(fine_tune_classifier=fine_tune_classifier, leaderboard=lambda df,arch: leaderboard(df, archs=[arch]),
                        ulmfit=lambda df,arch: ulmfit(df, arch=arch))
    with pytest.raises(ValueError, match='`is_valid` and `audit`'): doors[door](both, arch)

def test_chosen_rows_without_random_ones_are_warned_of(df, tmp_path, caplog):
    from fastformers.ulmfit.recipe import Recipe, read_data
    (new := df.drop(columns='audit')).to_csv(tmp_path/'chosen.csv', index=False)
    df.to_csv(tmp_path/'audit.csv', index=False)
    for name,chosen,n in (('chosen',True,1), ('chosen',False,1), ('audit',True,1)):
        read_data(Recipe().replace(data=dict(source=str(tmp_path/f'{name}.csv'), chosen=chosen)))
        assert sum('chose to label' in o.message for o in caplog.records)==n

def test_test_rows_that_two_people_have_labelled_count_once(df, arch):
    test = df[:12].assign(text=[f'{t} {i}' for i,t in enumerate(df.text[:12])])
    two = pd.concat([test.assign(label='positive', by='a', time='1'), test.assign(by='b', time='2')])
    board = leaderboard(df, test=two, minutes=1, seeds=(1,), entries=['TF-IDF'])
    stage = fine_tune_classifier(df, arch, epochs=0, test=two)
    assert [board.task.labels[i] for i in board.y]==test.label.tolist() and len(board.rows('TF-IDF')[0])==len(stage.test_score)==12

def test_the_words_of_audit_are_read_or_named(df):
    from fastformers.text.readers import is_audit
    for yes,no in ((True,False), ('TRUE',' false '), (1.,np.nan), ('1','0'), (True,None)): assert is_audit(pd.DataFrame(dict(audit=[yes,no]), dtype=object)).tolist()==[True,False]
    assert is_audit(pd.DataFrame(dict(audit=pd.array([True,None], dtype='boolean')))).tolist()==[True,False]
    for odd in ('WAHR','yes'):
        with pytest.raises(ValueError, match=f"'audit' must be True for rows that were drawn at random, got '{odd.lower()}'"): is_audit(pd.DataFrame(dict(audit=[odd,'False'])))

def test_a_row_added_by_hand_is_trained_on(df):
    new = pd.concat([df, pd.DataFrame(dict(text=['added in a spreadsheet'], label=[df.label[0]]))], ignore_index=True)
    for blank in (np.nan, ''): assert split_rows(new.fillna({'audit':blank}) if blank=='' else new)[1]==np.flatnonzero(df.audit).tolist()
