"""experiments.token_sparsity: images cut into patches."""

import torch

from attnrank.experiments import token_sparsity


def test_patches_are_cut_row_by_row():
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.float64).view(2, 3, 4, 4)
    cut = token_sparsity.patches(images, 2)
    assert cut.shape == (2, 4, 12)
    for k, (row, column) in enumerate(((0, 0), (0, 2), (2, 0), (2, 2))):
        expected = images[:, :, row : row + 2, column : column + 2].flatten(1)
        assert torch.equal(cut[:, k], expected)
