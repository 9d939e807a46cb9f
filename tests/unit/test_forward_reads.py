# Copyright 2026 The hyper_parallel authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Code that still counts heads or vocabulary whole would give wrong numbers without an error: it is refused."""
import types

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import hyper_parallel as hp
from hyper_parallel.distributed.forward_reads import attribute_chains
from hyper_parallel.distributed.local_sizes import apply_local_sizes

HIDDEN, HEADS, SIZE = 16, 4, 4


class Attention(nn.Cell):
    """Four heads; subclasses say how the forward counts them."""

    def __init__(self, names=("q_proj", "k_proj", "v_proj", "o_proj"), **attributes):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Dense(HIDDEN, HIDDEN, has_bias=False))
        self.head_dim = SIZE
        for name, value in attributes.items():
            setattr(self, name, value)

    def construct(self, x):
        """Reads no size."""
        return self.o_proj(self.v_proj(x) + self.q_proj(x) + self.k_proj(x))


class UnknownName(Attention):
    """Counts its heads by a name that nobody knows."""

    def construct(self, x):
        """Splits into heads."""
        return self.o_proj(self.split(self.v_proj(x) + self.q_proj(x) + self.k_proj(x)))

    def split(self, x):
        """The helper that reads the count."""
        return ops.reshape(ops.reshape(x, (x.shape[0], self.H, -1)), x.shape)


class Handed(UnknownName):
    """Hands the count to a function, of which nothing is known."""

    def split(self, x):
        """The helper that reads the count."""
        return by_heads(x, self.H)


def by_heads(x, heads):
    """Splits into heads, and back."""
    return ops.reshape(ops.reshape(x, (x.shape[0], heads, -1)), x.shape)


class ReadsHidden(Attention):
    """Merges heads by the width of the residual stream."""

    def construct(self, x):
        """The usual last line of an attention."""
        context = self.v_proj(x) + self.q_proj(x) + self.k_proj(x)
        return self.o_proj(ops.reshape(context, (-1, self.hidden_size)))


class Model(nn.Cell):
    """Table, attention, head."""

    def __init__(self, attention, head=True):
        super().__init__()
        self.config = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "vocab_size": 32}
        self.embed_tokens = nn.Embedding(32, HIDDEN)
        self.attn = attention
        if head:
            self.lm_head = nn.Dense(HIDDEN, 32, has_bias=False)

    def construct(self, ids):
        """Logits."""
        return self.lm_head(self.attn(self.embed_tokens(ids)))


class FunctionalHead(Model):
    """Multiplies by the table in its own forward."""

    def construct(self, ids):
        """Logits by the table."""
        return ops.matmul(self.attn(self.embed_tokens(ids)), self.embed_tokens.embedding_table.T)


def test_a_count_that_is_used_on_this_ranks_heads_alone_is_proven_to_count_them():
    assert hp.plan(Model(UnknownName(H=HEADS)), tp=2).boundaries["attn"].local_sizes == {"H": 2}


def test_a_head_count_of_an_unknown_use_is_refused_with_the_override_that_decides():
    with pytest.raises(ValueError) as error:
        hp.plan(Model(Handed(H=HEADS)), tp=2)
    assert "reads self.H = 4, which is its heads" in str(error.value)
    assert 'overrides: [{match: "attn", tp_divide_attrs: [H]}]' in str(error.value)
    plan = hp.plan(Model(Handed(H=HEADS)), tp=2, overrides=[{"match": "attn", "tp_divide_attrs": ["H"]}])
    assert plan.boundaries["attn"]._tp_local_attr_plan.user_divide == ("H",)


def test_a_number_that_happens_to_equal_the_heads_is_left_alone_where_they_are_counted_by_name():
    plan = hp.plan(Model(UnknownName(H=HEADS, num_heads=HEADS)), tp=2)
    assert plan.boundaries["attn"]._tp_local_attr_plan.auto_divide == ("num_heads",)


def test_the_width_of_all_heads_is_proven_on_this_ranks_heads_and_refused_where_it_may_be_the_hidden_size():
    proven = hp.plan(Model(ReadsHidden(num_heads=HEADS, hidden_size=HIDDEN)), tp=2)
    assert proven.boundaries["attn"].local_sizes == {"hidden_size": 8}

    class Both(ReadsHidden):
        """The same width of the input and of the heads."""

        def construct(self, x):
            """One attribute, two meanings."""
            x = ops.reshape(x, (-1, self.hidden_size))
            context = self.v_proj(x) + self.q_proj(x) + self.k_proj(x)
            return self.o_proj(ops.reshape(context, (-1, self.hidden_size)))

    with pytest.raises(ValueError, match="reads self.hidden_size = 16, which is its width of all heads"):
        hp.plan(Model(Both(num_heads=HEADS, hidden_size=HIDDEN)), tp=2)
    hp.plan(Model(Both(num_heads=HEADS, hidden_size=HIDDEN)), tp=2,
            overrides=[{"match": "attn", "tp_divide_attrs": ["hidden_size"]}])
    hp.plan(Model(Attention(num_heads=HEADS, hidden_size=HIDDEN)), tp=2)


def test_counts_of_the_configuration_are_handled_or_refused_with_their_name():
    class FromConfig(Attention):
        """Reads the configuration in its forward."""

        def construct(self, x):
            """Splits into heads, and back."""
            config = self.config
            context = self.v_proj(x) + self.q_proj(x) + self.k_proj(x)
            context = ops.reshape(context, (x.shape[0], config.num_attention_heads, -1))
            return self.o_proj(ops.reshape(context, (-1, self.config.hidden_size)))

    class Elsewhere(Attention):
        """Hands the configuration's count on."""

        def construct(self, x):
            """Splits into heads, and back."""
            context = self.v_proj(x) + self.q_proj(x) + self.k_proj(x)
            return self.o_proj(by_heads(context, self.config.num_attention_heads))

    config = types.SimpleNamespace(num_attention_heads=HEADS, hidden_size=HIDDEN)
    attention = FromConfig(config=config)
    plan = hp.plan(Model(attention), tp=2)
    sizes = plan.boundaries["attn"].local_sizes
    assert sizes == {"config.num_attention_heads": 2, "config.hidden_size": 8}
    undo = apply_local_sizes(attention, "attn", sizes, 2)
    assert (attention.config.num_attention_heads, config.num_attention_heads) == (2, HEADS)
    undo()
    assert attention.config is config
    with pytest.raises(ValueError, match="reads self.config.num_attention_heads = 4, which is its heads"):
        hp.plan(Model(Elsewhere(config=config)), tp=2)


def test_a_width_of_the_input_is_no_size_of_this_ranks_heads():
    class ByShape(Attention):
        """The best-known way to write an attention."""

        def construct(self, x):
            """Back to the width that came in."""
            batch, length, width = x.shape
            context = self.v_proj(x) + self.q_proj(x) + self.k_proj(x)
            return self.o_proj(context.reshape((batch, length, width)))

    class Quotient(Attention):
        """The head size as a quotient."""

        def construct(self, x):
            """Splits into heads, and back."""
            size = x.shape[-1] // self.num_heads
            context = self.v_proj(x) + self.q_proj(x) + self.k_proj(x)
            return self.o_proj(context.reshape((-1, size)).reshape((x.shape[0], x.shape[1], -1)))

    with pytest.raises(ValueError, match="line 5 of its forward gives this rank's heads a size that was read from"):
        hp.plan(Model(ByShape(num_heads=HEADS)), tp=2)
    with pytest.raises(ValueError, match="line 5 of its forward gives this rank's heads a size|divides the width of"):
        hp.plan(Model(Quotient(num_heads=HEADS)), tp=2)

    class Known(Quotient):
        """The quotient of two attributes, both of which become local."""

        def construct(self, x):
            """Splits into heads, and back."""
            context = self.v_proj(x) + self.q_proj(x) + self.k_proj(x)
            context = context.reshape((-1, self.hidden_size // self.num_heads))
            return self.o_proj(context.reshape((x.shape[0], x.shape[1], -1)))

    assert hp.plan(Model(Known(num_heads=HEADS, hidden_size=HIDDEN)), tp=2).boundaries["attn"].local_sizes == {
        "hidden_size": 8}


def test_heads_are_divided_whatever_the_projections_are_called():
    class Raw(nn.Cell):
        """Weights held directly, as parameters."""

        def __init__(self):
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(self, name, Parameter(Tensor(np.ones((HIDDEN, HIDDEN), np.float32)), name=name))
            self.num_heads, self.head_dim = HEADS, SIZE

        def construct(self, x):
            """Reads the count."""
            return ops.matmul(ops.reshape(ops.matmul(x, self.q_proj.T), (-1, self.num_heads * self.head_dim)),
                              self.o_proj.T)

    plan = hp.plan(Model(Raw()), tp=2)
    assert plan.heads["attn"] == (4, 4, 4)
    assert plan.boundaries["attn"]._tp_local_attr_plan.auto_divide == ("num_heads",)


def test_a_table_that_another_forward_multiplies_by_is_refused_and_may_stay_whole():
    with pytest.raises(ValueError) as error:
        hp.plan(FunctionalHead(Attention(num_heads=HEADS), head=False), tp=2)
    assert "reads self.embed_tokens.embedding_table" in str(error.value) and "lm_head.weight" in str(error.value)
    plan = hp.plan(FunctionalHead(Attention(num_heads=HEADS), head=False), tp=2,
                   overrides=[{"match": "embed_tokens.embedding_table", "replicate": True}])
    assert not plan.parameters["embed_tokens.embedding_table"].slice_map.cuts


def test_chains_are_read_from_every_method_but_the_constructor():
    assert ("H",) in attribute_chains(UnknownName) and ("o_proj",) in attribute_chains(UnknownName)
    assert ("embed_tokens", "embedding_table", "T") in attribute_chains(FunctionalHead)
    assert ("embed_tokens", "embedding_table") in attribute_chains(FunctionalHead)
    assert ("config",) not in attribute_chains(Model)
