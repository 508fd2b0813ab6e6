"""A hang: which ranks stand still, their stacks and collectives, and the finding made of them."""
